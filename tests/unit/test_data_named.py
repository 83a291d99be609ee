"""Data sets that timm opens: labels, classes and images, with stand-ins for its readers."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import HwnasError, MissingPackageError, UsageError
from hwnas.training import named
from hwnas.training.data import DataSettings, load_data
from hwnas.training.loader import evaluation_batches


class Reader:
    """What timm's reader of Hugging Face data offers."""

    def __init__(self, split):
        self.class_to_idx = {"rose": 1, "iris": 0}
        self.labels = [0, 1] * (10 if split == "train" else 3)

    def iter_targets(self):
        return iter(self.labels)

    def __getitem__(self, index):
        if index == 4:
            return io.BytesIO(b"damaged"), self.labels[index]
        stream = io.BytesIO()
        Image.new("L", (9, 9), 100 * self.labels[index] + index).save(stream, "png")
        stream.seek(0)
        return stream, self.labels[index]


@pytest.fixture
def opened(monkeypatch):
    calls = []

    def create_dataset(name, *, root, split, download):
        calls.append((name, split, download))
        return SimpleNamespace(reader=Reader(split))

    monkeypatch.setattr(
        named, "import_timm", lambda part: SimpleNamespace(create_dataset=create_dataset)
    )
    return calls


SETTINGS = DataSettings(name="hfds/garden/Flowers", image_size=8, workers=0, heldout=0.2)


def test_parts_come_from_the_named_splits(opened):
    data = load_data(SETTINGS.model_copy(update={"test_split": "final"}))
    assert opened == [
        ("hfds/garden/Flowers", "train", False),
        ("hfds/garden/Flowers", "final", False),
    ]
    assert data.classes == ("iris", "rose")
    assert [len(data.train), len(data.heldout), len(data.test)] == [16, 4, 6]
    assert np.asarray(data.test.images.read(3)).max() == 103
    sources = {*data.train.images.indices.tolist(), *data.heldout.images.indices.tolist()}
    assert sources == set(range(20))


def test_without_a_test_split_there_is_no_test_part_and_that_is_said(opened):
    data = load_data(SETTINGS)
    assert data.test is None
    assert any("data.test_split" in note for note in data.notes)


def test_an_unreadable_image_is_named_and_not_replaced_by_its_neighbour(opened):
    data = load_data(SETTINGS)
    part = data.train if 4 in data.train.images.indices else data.heldout
    batches = evaluation_batches(data, part.name, batch_size=2)
    with pytest.raises(HwnasError, match=r"hfds/garden/Flowers, image 4"):
        list(batches.batches(0))


def failing(error):
    def create_dataset(name, **rest):
        raise error

    return lambda part: SimpleNamespace(create_dataset=create_dataset)


def test_a_missing_reader_package_is_named(monkeypatch):
    absent = ModuleNotFoundError("No module named 'datasets'", name="datasets")
    monkeypatch.setattr(named, "import_timm", failing(absent))
    with pytest.raises(MissingPackageError, match="package datasets"):
        load_data(SETTINGS)


@pytest.mark.parametrize("error", [RuntimeError("no such split"), FileNotFoundError("nowhere")])
def test_failures_of_the_library_are_explained(monkeypatch, error):
    monkeypatch.setattr(named, "import_timm", failing(error))
    with pytest.raises(HwnasError, match="cannot open hfds/garden/Flowers, split 'train'"):
        load_data(SETTINGS)


def test_labels_that_are_not_listed_or_not_classes_are_refused(monkeypatch):
    def holding(dataset):
        return lambda part: SimpleNamespace(create_dataset=lambda name, **rest: dataset)

    monkeypatch.setattr(named, "import_timm", holding(SimpleNamespace(classes=["a", "b"])))
    with pytest.raises(UsageError, match="does not list its labels"):
        load_data(SETTINGS)
    wrong = SimpleNamespace(classes=["a", "b"], targets=[0, 1, 2])
    monkeypatch.setattr(named, "import_timm", holding(wrong))
    with pytest.raises(HwnasError, match="labels outside its 2 classes"):
        load_data(SETTINGS)
    unnamed = SimpleNamespace(labels=np.array([0, 1, 2] * 4))
    monkeypatch.setattr(named, "import_timm", holding(unnamed))
    assert load_data(SETTINGS).classes == ("0", "1", "2")
