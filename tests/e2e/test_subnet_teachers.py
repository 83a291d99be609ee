"""A subnet teaches others what its card says it has learned."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.cli.main import main
from hwnas.errors import UsageError
from hwnas.pipeline.config import read_recipe
from hwnas.supernet import load_subnet, read_card
from hwnas.supernet.card import CARD_FILE
from hwnas.testing.runs import small_run
from hwnas.training.data import load_data
from hwnas.training.datasets import Data
from hwnas.training.teachers import load_teacher


@pytest.fixture(scope="module")
def subnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run(tmp_path_factory.mktemp("runs") / "run")
    assert main(["extract", "--run", str(folder), "--arch", "smallest", "--quiet"]) == 0
    (found,) = (folder / "subnets").iterdir()
    return found


@pytest.fixture(scope="module")
def data(subnet: Path) -> Data:
    return load_data(read_recipe(str(subnet / "config.toml")).data)


def probabilities(subnet: Path, data: Data, images: torch.Tensor) -> torch.Tensor:
    teacher = load_teacher(
        [str(subnet)], pretrained=True, temperature=0.5, data=data, device=torch.device("cpu")
    )
    return teacher(images)


def pixels(data: Data) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(4, data.channels, data.image_size, data.image_size, generator=generator)


def normalised(images: torch.Tensor, data: Data) -> torch.Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    return (images - mean) / std


@torch.no_grad()
def expected(subnet: Path, data: Data) -> torch.Tensor:
    network = load_subnet(subnet).eval()
    return (network(normalised(pixels(data), data)) / 0.5).softmax(-1)


def test_on_its_own_data_it_sees_what_they_give(subnet: Path, data: Data) -> None:
    assert read_card(subnet).classes == data.classes
    images = normalised(pixels(data), data)
    assert torch.equal(probabilities(subnet, data, images), expected(subnet, data))


def test_images_are_normalised_as_it_learned_them(subnet: Path, data: Data) -> None:
    other = replace(
        data, mean=tuple(v + 0.2 for v in data.mean), std=tuple(2 * v for v in data.std)
    )
    got = probabilities(subnet, other, normalised(pixels(data), other))
    torch.testing.assert_close(got, expected(subnet, data), rtol=1e-3, atol=1e-4)


def test_classes_in_another_order_are_put_into_that_of_the_data(subnet: Path, data: Data) -> None:
    turned = replace(data, classes=(*data.classes[3:], *data.classes[:3]))
    got = probabilities(subnet, turned, normalised(pixels(data), data))
    torch.testing.assert_close(got, expected(subnet, data).roll(-3, dims=1))


def test_other_classes_are_refused(subnet: Path, data: Data) -> None:
    other = replace(data, classes=(*data.classes[:-1], "otter"))
    with pytest.raises(UsageError, match="trained on other classes .* does not know otter$"):
        probabilities(subnet, other, pixels(data))


def test_a_subnet_without_a_card_is_taken_as_it_is(
    subnet: Path, data: Data, tmp_path: Path
) -> None:
    for file in subnet.iterdir():
        if file.name != CARD_FILE:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    other = replace(data, classes=(*data.classes[:-1], "otter"))
    images = normalised(pixels(data), data)
    assert torch.equal(probabilities(tmp_path, other, images), expected(subnet, data))
