"""The preprocessing that goes with a subnet gives the tensors that evaluation computes on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hwnas.errors import FormatError, UsageError
from hwnas.io.preprocessing import Preprocessing, preprocessing_from
from hwnas.training.data import load_data
from hwnas.training.datasets import Data, DataSettings
from hwnas.training.loader import evaluation_batches
from hwnas.training.preprocessing import describe_data, preprocessing_of

# Single precision: the loaders multiply by 1 / (255 std), here it is divided.
SAME = {"rtol": 0, "atol": 1e-6}


def check(data: Data, side: int) -> None:
    """Compare images of the held-out part, prepared one by one, with the loader's batch."""
    count = min(16, len(data.heldout))
    batch, _ = next(evaluation_batches(data, batch_size=count, workers=0).batches(0))
    if side != data.image_size:
        batch = torch.nn.functional.interpolate(batch, (side, side), mode="bicubic")
    preprocessing = preprocessing_of(data, side=side)
    again = preprocessing_from(preprocessing.to_json(), "test")
    assert again == preprocessing
    ours = np.stack([again.apply(data.heldout.images.read(index)) for index in range(count)])
    assert ours.dtype == np.float32
    assert ours.shape == (count, data.channels, side, side)
    np.testing.assert_allclose(ours, batch.numpy(), **(SAME if side == data.image_size
                                                       else {"rtol": 0, "atol": 2e-5}))  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "side"),
    [
        ({}, 8),
        ({"image_size": 28}, 28),
        ({"image_size": 28, "channels": 3}, 24),
        ({"image_size": 20, "mean": (0.1,), "std": (0.7,), "interpolation": "bilinear"}, 32),
    ],
)
def test_of_a_builtin_data_set(settings, side: int) -> None:
    check(load_data(DataSettings(name="digits", heldout=50, **settings)), side)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many shapes and modes."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    modes = ("RGB", "L", "RGBA", "P", "1", "LA")
    for label in ("cat", "dog"):
        (root / label).mkdir()
        for index in range(12):
            height, width = (int(side) for side in rng.integers(9, 90, 2))
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            image = Image.fromarray(pixels).convert(modes[index % len(modes)])
            image.save(root / label / f"{index}.png")
        deep = rng.integers(0, 2**16, (31, 40)).astype(np.uint16)
        Image.fromarray(deep).save(root / label / "deep.png")
    return root


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize(
    ("more", "side"),
    [({"image_size": 32}, 32), ({"image_size": 33, "crop_pct": 0.9, "channels": 1}, 33),
     ({"image_size": 48, "crop_pct": 1.0}, 32)],
)  # fmt: skip
def test_of_a_folder(folder: Path, interpolation: str, more, side: int) -> None:
    settings = DataSettings(path=folder, heldout=10, interpolation=interpolation, workers=0, **more)
    check(load_data(settings), side)


@given(st.integers(4, 70), st.integers(4, 70))
def test_scaling_is_that_of_the_network(source: int, target: int) -> None:
    rng = np.random.default_rng(source * 100 + target)
    squares = rng.integers(0, 256, (2, source, source, 3), np.uint8)
    ours = Preprocessing(
        size=target, crop=source, resize=source, interpolation="bicubic",
        mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), channels="RGB",
    ).normalise(squares)  # fmt: skip
    plain = (squares.astype(np.float32) / 255 - np.float32([0.4, 0.5, 0.6])) / np.float32(
        [0.2, 0.3, 0.4]
    )
    images = torch.from_numpy(plain.transpose(0, 3, 1, 2).copy())
    theirs = torch.nn.functional.interpolate(images, (target, target), mode="bicubic")
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-4)


def test_it_needs_neither_torch_nor_pillow_for_arrays_of_the_right_size() -> None:
    code = (
        "import sys, numpy as np\n"
        "from hwnas.io.preprocessing import Preprocessing\n"
        "made = Preprocessing(size=8, crop=8, resize=8, interpolation='bicubic', mean=(0.5,),"
        " std=(0.5,), channels='L').apply(np.full((8, 8), 255, np.uint8))\n"
        "assert made.shape == (1, 8, 8) and (made == 1).all()\n"
        "sys.exit(bool({'torch', 'PIL', 'onnx', 'timm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std": [0.0, 1.0, 1.0]}, "std is"),
        ({"mean": [0.1]}, "mean has 1 values; accepted: 3"),
        ({"channels": "BGR"}, "channels is 'BGR'; accepted: L, RGB"),
        ({"interpolation": "lanczos"}, "interpolation is 'lanczos'"),
        ({"crop": 40}, "crop is 40; accepted: at most resize, 32"),
        ({"crop": 10**6, "resize": 10**6}, "crop is 1000000; accepted: pixels from 1 to 4096"),
        ({"size": 10**7}, "size is 10000000; accepted: pixels from 1 to 4096"),
        ({"size": "big"}, "damaged"),
    ],
)
def test_damaged_documents_are_refused(change, message: str) -> None:
    good = Preprocessing(
        size=24, crop=28, resize=32, interpolation="bicubic",
        mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), channels="RGB",
    ).to_json()  # fmt: skip
    with pytest.raises(FormatError, match=message):
        preprocessing_from({**good, **change}, "card.json")
    with pytest.raises(FormatError, match="lacks 'resize'"):
        preprocessing_from({k: v for k, v in good.items() if k != "resize"}, "card.json")


def test_floats_are_no_images() -> None:
    preprocessing = Preprocessing(
        size=8, crop=8, resize=8, interpolation="bicubic", mean=(0.5,), std=(0.5,), channels="L"
    )
    with pytest.raises(UsageError, match="image is float32"):
        preprocessing.apply(np.zeros((8, 8), np.float32))  # type: ignore[arg-type]


def test_a_data_set_is_told_from_one_with_another_pixel(folder: Path) -> None:
    def digests(settings: DataSettings) -> list[str]:
        parts = describe_data(load_data(settings))["parts"]
        return [part["digest"] for part in parts.values()]

    digits = DataSettings(name="digits", heldout=50)
    assert digests(digits) == digests(digits)
    other = digests(digits.model_copy(update={"seed": 1}))
    assert other[0] != digests(digits)[0]
    assert other[2] == digests(digits)[2]  # the seed never moves test images
    images = DataSettings(path=folder, heldout=6, workers=0)
    before = digests(images)
    assert before == digests(images)
    Image.new("RGB", (70, 70)).save(folder / "cat" / "0.png")
    assert digests(images) != before
