"""The size of a file that has not been written is that of the file."""

import numpy as np
import pytest

import hwnas
from hwnas.export import onnx_from_description
from hwnas.pipeline.filesize import FileSizes
from hwnas.pipeline.models import build_model


def few(name: str):
    space = hwnas.space(name)
    return space, [space.smallest(), space.largest(), *space.sample(2, np.random.default_rng(0))]


@pytest.mark.parametrize(("name", "within"), [("nano", 0.02), ("nasvit", 0.002)])
def test_sizes_are_those_of_the_files(name: str, within: float) -> None:
    space, archs = few(name)
    found = FileSizes(space, "fp32")(space.encode(archs))
    files = [len(onnx_from_description(space.network(arch))) for arch in archs]
    np.testing.assert_allclose(found, files, rtol=within)
    four_bytes_each = 4 * space.cost(archs).params
    if name == "nasvit":
        assert found[1] > 1.3 * four_bytes_each[1]


@pytest.mark.parametrize("precision", ["fp16", "int8_dynamic", "int8_static"])
def test_sizes_of_other_precisions(precision: str) -> None:
    space, archs = few("nano")
    found = FileSizes(space, precision)(space.encode(archs))
    files = [len(build_model(arch.to_json(), precision)) for arch in archs]
    np.testing.assert_allclose(found, files, rtol=0.006)


def test_equal_rows_have_equal_sizes_in_any_order() -> None:
    space, archs = few("nano")
    codes = space.encode(archs)
    sizes = FileSizes(space, "fp32")
    assert np.array_equal(sizes(codes)[::-1], sizes(codes[::-1]))
