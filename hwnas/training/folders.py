"""Folders of class folders: `train/`, `val/` and `test/`, or one folder that is split.

Only names are read at first, and the beginnings of a sample of files: a folder of a million images
opens in seconds. What that leaves unseen is found by `verify`, or named when it is met.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.errors import HwnasError, UsageError
from hwnas.io.preprocessing import check_depth
from hwnas.training.datasets import DataSettings, FileImages, Part, Progress
from hwnas.training.headers import Header, described
from hwnas.training.split import split

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"})
_ENDINGS = " ".join(sorted(EXTENSIONS))
TRAIN_NAMES = ("train", "training")
VAL_NAMES = ("val", "valid", "validation")
TEST_NAMES = ("test", "testing")
_SAMPLE = 2000
_SHOWN = 5
_BLOCK = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderParts:
    """What a folder holds: its classes and parts, and what the user should know about it."""

    classes: tuple[str, ...]
    train: Part
    heldout: Part
    test: Part | None
    notes: tuple[str, ...]


def read_folder(
    settings: DataSettings, *, channels: int, progress: Progress | None = None
) -> FolderParts:
    """Return the parts of the folder `settings.path`."""
    root = settings.path
    assert root is not None
    if not root.is_dir():
        raise UsageError(
            f"data.path is {root}, {'a file' if root.exists() else 'which does not exist'} "
            f"(looked for in {Path.cwd()})",
            "name the folder that holds a folder of images per class: --set data.path=FOLDER",
        )
    notes: list[str] = []
    train_root = _subfolder(root, TRAIN_NAMES)
    if train_root is None:
        parts = _from_one_folder(root, settings, channels=channels, notes=notes)
    else:
        parts = _from_subfolders(root, train_root, settings, channels=channels, notes=notes)
    seen: list[Header] = []
    for part in (parts.train, parts.heldout, parts.test):
        if part is not None:
            seen += _check_images(part, every=settings.verify, progress=progress)
    told = described(seen, channels=channels, side=settings.image_size)
    return replace(parts, notes=(_counts(parts), *told, *parts.notes))


def _counts(parts: FolderParts) -> str:
    test = "none" if parts.test is None else str(len(parts.test))
    return (
        f"{len(parts.classes)} classes ({_listed(parts.classes)}); images: {len(parts.train)} to "
        f"train on, {len(parts.heldout)} held out for the search, {test} for the final test"
    )


def labelled_folder(root: Path, *, channels: int) -> tuple[tuple[str, ...], Part]:
    """Return (classes, images) of a folder of class folders as it is; no image is opened.

    Unlike what is trained on it may hold one class, and some of its folders may be empty.
    """
    return _scan(root, None, channels=channels, notes=[], trained_on=False)


def _from_one_folder(
    root: Path, settings: DataSettings, *, channels: int, notes: list[str]
) -> FolderParts:
    for names in (VAL_NAMES, TEST_NAMES):
        if found := _subfolder(root, names):
            raise UsageError(
                f"{root} holds {found.name}/ but no train/",
                f"put the training images in {root / 'train'}/<class>/",
            )
    classes, whole = _scan(root, None, channels=channels, notes=notes)
    rest, test = whole, None
    if settings.test is not None:
        kept, aside = split(whole.labels, classes, part="test", wanted=settings.test, seed=0)
        rest, test = whole.take(kept, name="train"), whole.take(aside, name="test")
    else:
        notes.append(
            f"no test part: {root} is one folder and data.test is not set; "
            "--set data.test=0.1 keeps a tenth of it for the final test"
        )
    train, heldout = _hold_out(rest, classes, settings)
    return FolderParts(classes=classes, train=train, heldout=heldout, test=test, notes=tuple(notes))


def _from_subfolders(
    root: Path, train_root: Path, settings: DataSettings, *, channels: int, notes: list[str]
) -> FolderParts:
    classes, whole = _scan(train_root, None, channels=channels, notes=notes)
    val_root, test_root = _subfolder(root, VAL_NAMES), _subfolder(root, TEST_NAMES)
    if settings.test is not None:
        raise UsageError(
            f"data.test splits a single folder, but {root} has {train_root.name}/",
            f"remove data.test, or put test images in {root / 'test'}/<class>/",
        )
    if test_root is None and val_root is not None and settings.val == "test":
        val_root, test_root = None, val_root
        notes.append(f"{test_root} serves as the test part, as data.val says")
    if val_root is None:
        train, heldout = _hold_out(whole, classes, settings)
    else:
        train = whole
        _, found = _scan(val_root, classes, channels=channels, notes=notes)
        heldout = Part(name="heldout", images=found.images, labels=found.labels)
        notes.append(f"{val_root} is the held-out part; data.heldout is not used")
    test = None
    if test_root is not None:
        _, found = _scan(test_root, classes, channels=channels, notes=notes)
        test = Part(name="test", images=found.images, labels=found.labels)
    else:
        notes.append(f"no test part: {root} has no folder test/")
    return FolderParts(classes=classes, train=train, heldout=heldout, test=test, notes=tuple(notes))


def _hold_out(whole: Part, classes: Sequence[str], settings: DataSettings) -> tuple[Part, Part]:
    kept, aside = split(
        whole.labels, classes, part="heldout", wanted=settings.heldout, seed=settings.seed
    )
    return whole.take(kept, name="train"), whole.take(aside, name="heldout")


def _subfolder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _scan(
    root: Path,
    classes: tuple[str, ...] | None,
    *,
    channels: int,
    notes: list[str],
    trained_on: bool = True,
) -> tuple[tuple[str, ...], Part]:
    """Return (classes, images) of a folder of class folders; `classes` must agree if given.

    What is trained on has at least two classes, and images of each.
    """
    names, loose = _class_names(root)
    if loose:
        notes.append(f"{root}: ignored {_count(loose, 'image')} outside class folders")
    if classes is None:
        least = 2 if trained_on else 1
        if len(names) < least:
            raise UsageError(
                f"{root} holds {_count(names, 'class folder')}; needed: at least {least}",
                _way_out(root, names, loose),
            )
    elif set(names) != set(classes):
        raise _disagreeing(root, names, classes)
    order = tuple(names) if classes is None else classes
    files: list[bytes] = []
    labels: list[int] = []
    ignored: list[str] = []
    for label, name in enumerate(order):
        found = _files(root, name, ignored)
        if not found and trained_on:
            raise UsageError(
                f"class {name!r} has no image in {root / name}",
                f"remove the folder if it is no class; accepted file names end in {_ENDINGS}",
            )
        files.extend(found)
        labels.extend([label] * len(found))
    if not files:
        raise UsageError(
            f"there is no image in the class folders of {root}",
            f"accepted file names end in {_ENDINGS}",
        )
    if ignored:
        shown = ", ".join(ignored[:_SHOWN])
        notes.append(f"{root}: ignored {_count(ignored, 'file')} not named as images ({shown})")
    images = FileImages(root=root, names=np.array(files), channels=channels)
    return order, Part(name="train", images=images, labels=np.array(labels, dtype=np.int64))


def contents(root: Path, *, without: Sequence[str] = (), sizes: bool = False) -> str:
    """Return a digest of the names of all files below a folder, and of their sizes if wanted.

    `without`: folders in it that do not count. Sizes cost a look at every file.
    """
    found = hashlib.sha256()
    for here, subfolders, names in os.walk(root, followlinks=True):
        top = os.path.samefile(here, root)
        subfolders[:] = sorted(n for n in subfolders if n[0] != "." and not (top and n in without))
        for name in sorted(name for name in names if name[0] != "."):
            path = os.path.join(here, name)
            size = os.path.getsize(path) if sizes and os.path.exists(path) else ""
            found.update(os.fsencode(f"{os.path.relpath(path, root)}\0{size}\0"))
    return found.hexdigest()


def _way_out(root: Path, names: Sequence[str], loose: Sequence[str]) -> str:
    """Return what to do about a folder that does not hold class folders."""
    for place in (*(root / name for name in names), root.absolute().parent):
        if _subfolder(place, TRAIN_NAMES) is not None:
            return f"did you mean data.path={place}, which holds {TRAIN_NAMES[0]}/?"
    if loose:
        beside = [
            entry.name
            for entry in os.scandir(root.absolute().parent)
            if entry.is_dir() and not entry.name.startswith(".")
        ]
        said = f"{_count(loose, 'image')} lie in it: sort them into a folder per class"
        return said + (f", or name {root.parent} if it is a class itself" if beside[1:] else "")
    return f"put images in {root}/<class>/"


def _class_names(root: Path) -> tuple[list[str], list[str]]:
    """Return the names of the class folders, and of images that lie beside them."""
    try:
        entries = [entry for entry in os.scandir(root) if not _is_litter(entry.name)]
    except OSError as error:
        raise HwnasError(f"cannot read {root}: {error.strerror}") from error
    names = sorted((entry.name for entry in entries if entry.is_dir()), key=_natural)
    loose = [entry.name for entry in entries if entry.is_file() and _is_image(entry.name)]
    return names, loose


def _is_litter(name: str) -> bool:
    """Return whether a name is that of something hidden, or of what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def _refuse(error: OSError) -> None:
    raise HwnasError(f"cannot read {error.filename}: {error.strerror}") from error


def _files(root: Path, class_name: str, ignored: list[str]) -> list[bytes]:
    """Return the paths of a class's images, relative to `root`."""
    found = []
    for here, subfolders, names in os.walk(root / class_name, onerror=_refuse, followlinks=True):
        subfolders.sort(key=_natural)
        # Strings: a million Path objects take half a minute.
        inside = os.path.relpath(here, root)
        for name in sorted(names, key=_natural):
            path = os.path.join(inside, name)
            if _is_image(name) and not name.startswith("."):
                found.append(os.fsencode(path))
            elif not name.startswith("."):
                ignored.append(path)
    return found


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts 2 before 10, as timm sorts classes."""
    return [
        (0, int(piece), "") if piece.isdecimal() else (1, 0, piece.lower())
        for piece in re.split(r"(\d+)", name)
        if piece
    ] + [(2, 0, name)]


def _disagreeing(root: Path, names: Sequence[str], classes: Sequence[str]) -> UsageError:
    missing = [name for name in classes if name not in set(names)]
    extra = [name for name in names if name not in set(classes)]
    said = []
    if missing:
        said.append(f"lacks {_listed(missing)}")
    if extra:
        said.append(f"has {_listed(extra)} that the training folder lacks")
    return UsageError(
        f"{root} has {len(names)} classes, the training folder {len(classes)}: "
        + " and ".join(said),
        "use the same class folders in every part",
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {more} more" if more > 0 else "")


def _count(items: Sequence[object], what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{len(items)} {what}{'' if len(items) == 1 else plural}"


def _check_images(part: Part, *, every: bool, progress: Progress | None) -> list[Header]:
    """Return the headers of a sample of the images, or of all.

    Raises an error that names the damaged files among them.
    """
    images = part.images
    assert isinstance(images, FileImages)
    total = len(part)
    chosen: NDArray[np.int64] = np.arange(total)
    if not every and total > _SAMPLE:
        chosen = np.linspace(0, total - 1, _SAMPLE).astype(np.int64)
    how: Literal["decode", "header"] = "decode" if every else "header"
    broken: list[str] = []
    seen: list[Header] = []
    # Decoding releases the interpreter lock.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(chosen), _BLOCK):
            block = chosen[start : start + _BLOCK].tolist()
            for found in pool.map(lambda index: _looked_at(images, index, how=how), block):
                if isinstance(found, str):
                    broken.append(found)
                else:
                    seen.append(found)
            if progress is not None and every:
                progress(f"checking {part.name} images", start + len(block), len(chosen))
    if broken:
        more = len(broken) - _SHOWN
        raise HwnasError(
            f"{_count(broken, 'image')} of the {part.name} part cannot be read: "
            + "; ".join(broken[:_SHOWN])
            + (f"; and {more} more" if more > 0 else ""),
            "replace or remove them"
            + ("" if every else "; --set data.verify=true checks every image"),
        )
    return seen


def _looked_at(images: FileImages, index: int, *, how: Literal["decode", "header"]) -> Header | str:
    """Return the header of an image, or its path and what is wrong with it."""
    path = images.path(index)
    try:
        with Image.open(path) as image:
            if how == "decode":
                image.load()
            check_depth(image.mode)
            return Header(mode=image.mode, width=image.width, height=image.height)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = str(error) or type(error).__name__
        return f"{path} ({reason})" if str(path) not in reason else reason
