"""Subnets in folders: damaged files are explained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.errors import FormatError, HwnasError
from hwnas.io import read_tensors, write_tensors
from hwnas.nets import build_network
from hwnas.spaces import space
from hwnas.supernet import load_subnet, save_subnet
from hwnas.supernet.subnet import ARCH_FILE, WEIGHTS_FILE


@pytest.fixture
def subnet(tmp_path: Path) -> Path:
    of = space("nano")
    save_subnet(build_network(of.network(of.smallest())), of, of.smallest(), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, "options are None, expected an object"),
        ([], r"options are \[\], expected an object"),
        (5, "options are 5, expected an object"),
        ({"scaling": 1}, "unknown .*1; known: "),
        ({"scale": 1}, "unknown option of space nano 'scale'"),
        ({"classes": "ten"}, "classes = 'ten'; accepted"),
    ],
)
def test_damaged_options_are_explained(subnet: Path, options: Any, message: str) -> None:
    document = json.loads((subnet / ARCH_FILE).read_text())
    (subnet / ARCH_FILE).write_text(json.dumps({**document, "options": options}))
    with pytest.raises(HwnasError, match=f"{ARCH_FILE}: {message}"):
        load_subnet(subnet)


def test_weights_of_other_shapes_are_named(subnet: Path) -> None:
    arrays, metadata = read_tensors(subnet / WEIGHTS_FILE)
    name = "blocks.stem.conv.weight"
    shape = arrays[name].shape
    wrong = np.zeros((*shape[:-1], shape[-1] + 1), np.float32)
    write_tensors(subnet / WEIGHTS_FILE, {**arrays, name: wrong}, metadata)
    with pytest.raises(FormatError, match=rf"{name} is \(8, 3, 3, 4\), expected \(8, 3, 3, 3\)"):
        load_subnet(subnet)
