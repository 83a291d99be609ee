"""Folders of images from end to end: parts, batches with and without workers, every fault."""

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hwnas.errors import HwnasError, UsageError
from hwnas.training import folders
from hwnas.training.augment import Augmentation
from hwnas.training.data import DataSettings, load_data
from hwnas.training.datasets import FileImages
from hwnas.training.loader import Piece, _Seeded, evaluation_batches, training_batches

COLOURS = {"cat": (200, 30, 30), "dog": (30, 200, 30), "eel": (30, 30, 200)}


def write_images(root, per_class, *, suffix=".png", side=20, colours=COLOURS):
    for name, colour in colours.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            randomness = np.random.default_rng([number, *colour])
            noise = randomness.integers(-20, 20, size=(side + number % 3, side, 3))
            pixels = (np.array(colour) + noise).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}{suffix}")
    return root


def settings(path, **values):
    return DataSettings(path=path, image_size=16, workers=0, **values)


@pytest.fixture
def three_parts(tmp_path):
    write_images(tmp_path / "train", 12)
    write_images(tmp_path / "val", 4, suffix=".jpg")
    write_images(tmp_path / "test", 5)
    return tmp_path


def names(part):
    return {part.images.path(index) for index in range(len(part))}


def test_train_val_and_test_are_three_parts(three_parts):
    data = load_data(settings(three_parts))
    assert data.classes == ("cat", "dog", "eel")
    assert [len(data.train), len(data.heldout), len(data.test)] == [36, 12, 15]
    assert {path.parent.parent.name for path in names(data.heldout)} == {"val"}
    assert any("held-out" in note for note in data.notes)
    path = data.test.images.path(7)
    assert data.classes[data.test.labels[7]] == path.parent.name
    assert data.preprocessing == {
        "size": [16, 16],
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "channels": "RGB",
        "range": [0.0, 1.0],
    }


def test_an_absent_test_part_is_said_and_never_replaced(tmp_path):
    write_images(tmp_path / "train", 6)
    data = load_data(settings(tmp_path))
    assert data.test is None
    assert len(data.heldout) == 3
    assert not names(data.train) & names(data.heldout)
    assert any("no test part" in note for note in data.notes)
    with pytest.raises(UsageError, match="no test part"):
        evaluation_batches(data, "test", batch_size=2)
    write_images(tmp_path / "val", 4)
    data = load_data(settings(tmp_path))
    assert (data.test, len(data.heldout)) == (None, 12)
    data = load_data(settings(tmp_path, val="test", heldout=6))
    assert {path.parent.parent.name for path in names(data.test)} == {"val"}
    assert {path.parent.parent.name for path in names(data.heldout)} == {"train"}
    assert len(data.heldout) == 6


def test_one_folder_is_split(tmp_path):
    write_images(tmp_path, 10)
    data = load_data(settings(tmp_path, heldout=0.2, test=0.2))
    assert [len(data.train), len(data.heldout), len(data.test)] == [19, 5, 6]
    parts = [names(data.train), names(data.heldout), names(data.test)]
    assert len(set.union(*parts)) == 30
    other = load_data(settings(tmp_path, heldout=0.2, test=0.2, seed=9))
    assert names(other.test) == parts[2]
    assert names(other.heldout) != parts[1]
    assert load_data(settings(tmp_path)).test is None


def test_classes_are_sorted_as_numbers_where_they_are_numbers(tmp_path):
    write_images(tmp_path, 2, colours={str(n): (n, n, n) for n in (10, 9, 2, 100)})
    assert load_data(settings(tmp_path)).classes == ("2", "9", "10", "100")


@pytest.mark.parametrize("name", ["weak", "deit"])
def test_batches_are_the_same_with_workers_ranks_and_after_resuming(three_parts, name):
    data = load_data(settings(three_parts))

    def run(start=0, **options):
        batches = training_batches(
            data, batch_size=12, augmentation=Augmentation(name=name), seed=4, **options
        )
        return list(batches.batches(2, start=start))

    torch.manual_seed(0)
    whole = run()
    torch.manual_seed(1)
    assert [tuple(images.shape) for images, _ in whole] == [(12, 3, 16, 16)] * 3
    resumed = run(start=2, workers=2)
    assert torch.equal(resumed[0][0], whole[2][0])
    assert torch.equal(resumed[0][1], whole[2][1])
    pieces = [run(piece=Piece(rank=rank, world=3)) for rank in range(3)]
    for number, (images, labels) in enumerate(whole):
        assert torch.equal(torch.cat([piece[number][0] for piece in pieces]), images)
        assert torch.equal(torch.cat([piece[number][1] for piece in pieces]), labels)


def test_epochs_differ_and_labels_belong_to_images(three_parts):
    data = load_data(settings(three_parts, mean=(0.0,) * 3, std=(1.0,) * 3))
    augmentation = Augmentation(name="none")
    batches = training_batches(data, batch_size=18, augmentation=augmentation, seed=0)
    first, second = list(batches.batches(0)), list(batches.batches(1))
    assert not torch.equal(first[0][0], second[0][0])
    for images, labels in (*first, *second):
        assert torch.equal(images.mean((2, 3)).argmax(1), labels)


def test_evaluation_is_resize_and_centre_crop(three_parts):
    data = load_data(settings(three_parts))
    images, labels = zip(*evaluation_batches(data, "test", batch_size=4).batches(0), strict=True)
    assert [len(batch) for batch in labels] == [4, 4, 4, 3]
    assert torch.cat(labels).tolist() == sorted(data.test.labels.tolist())
    image = data.test.images.read(1)
    width, height = image.size
    assert (width, height) == (20, 21)
    resized = image.resize((18, int(18 * 21 / 20)), Image.Resampling.BICUBIC)
    cropped = np.asarray(resized.crop((1, 1, 17, 17)), np.float32) / 255
    expected = (cropped - np.array(data.mean)) / np.array(data.std)
    assert np.allclose(images[0][1].permute(1, 2, 0).numpy(), expected, atol=0.03)


def test_memory_and_timm_prepare_an_image_alike():
    from hwnas.training.loader import evaluation_transform

    data = load_data(DataSettings(name="digits"))
    images, _ = next(evaluation_batches(data, "test", batch_size=8).batches(0))
    transform = evaluation_transform(data)
    for index in range(8):
        assert torch.allclose(transform(data.test.images.read(index)), images[index], atol=1e-6)


def test_samples_can_be_sent_to_worker_processes(three_parts):
    data = load_data(settings(three_parts))
    samples = _Seeded(data.train.images, data.train.labels, np.asarray)
    copied = pickle.loads(pickle.dumps(samples))
    assert np.array_equal(copied[3, 0][0], samples[3, 0][0])


# --- faults


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[:-40])


def test_a_text_file_named_png_is_found_when_the_folder_is_opened(three_parts):
    bad = three_parts / "train" / "dog" / "3.png"
    bad.write_text("not an image")
    with pytest.raises(HwnasError, match="1 image of the train part") as caught:
        load_data(settings(three_parts))
    assert str(bad) in caught.value.message


def test_an_empty_file_in_another_part_is_found_as_well(three_parts):
    bad = three_parts / "test" / "eel" / "0.png"
    bad.write_bytes(b"")
    with pytest.raises(HwnasError, match="of the test part") as caught:
        load_data(settings(three_parts))
    assert str(bad) in caught.value.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_image_is_named_when_it_is_met(three_parts, workers):
    bad = three_parts / "val" / "cat" / "2.jpg"
    truncate(bad)
    data = load_data(settings(three_parts))
    with pytest.raises(HwnasError, match="truncated") as caught:
        list(evaluation_batches(data, batch_size=4, workers=workers).batches(0))
    assert str(bad) in caught.value.message
    assert "Traceback" not in caught.value.message
    assert "verify" in caught.value.hint


def test_a_worker_that_is_ended_by_others_is_no_bug_of_ours(three_parts):
    batches = evaluation_batches(load_data(settings(three_parts)), batch_size=4, workers=1)
    batches = replace(batches, transform=lambda _image: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(HwnasError, match=r"reads images ended \(DataLoader worker") as caught:
        list(batches.batches(0))
    assert "data.workers=0" in caught.value.hint


def test_verifying_decodes_every_image(three_parts):
    for name in ("cat", "dog"):
        truncate(three_parts / "train" / name / "5.png")
    load_data(settings(three_parts))
    seen = []
    with pytest.raises(HwnasError, match="2 images of the train part") as caught:
        load_data(settings(three_parts, verify=True), progress=lambda *news: seen.append(news))
    assert "cat/5.png" in caught.value.message
    assert "dog/5.png" in caught.value.message
    assert seen == [("checking train images", 36, 36)]


def test_a_large_folder_is_sampled(three_parts, monkeypatch):
    monkeypatch.setattr(folders, "_SAMPLE", 3)
    (three_parts / "train" / "cat" / "1.png").write_text("not an image")
    assert len(load_data(settings(three_parts)).train) == 36
    (three_parts / "train" / "eel" / "11.png").write_text("the last by name")
    with pytest.raises(HwnasError, match=r"eel.11\.png"):
        load_data(settings(three_parts))


def test_an_empty_class_is_named(three_parts):
    for path in (three_parts / "train" / "eel").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(UsageError, match="class 'eel' has no image"):
        load_data(settings(three_parts))


def test_classes_that_differ_between_parts_are_named(three_parts):
    (three_parts / "val" / "dog").rename(three_parts / "val" / "fox")
    with pytest.raises(UsageError, match="lacks 'dog' and has 'fox'") as caught:
        load_data(settings(three_parts))
    assert str(three_parts / "val") in caught.value.message
    write_images(three_parts / "val", 2)
    with pytest.raises(UsageError, match="has 4 classes, the training folder 3"):
        load_data(settings(three_parts))


@pytest.mark.parametrize(
    ("colours", "said"), [({}, "0 class folders"), ({"cat": (1, 1, 1)}, "1 class folder;")]
)
def test_fewer_than_two_classes_are_refused(tmp_path, colours, said):
    write_images(tmp_path, 3, colours=colours)
    with pytest.raises(UsageError, match=said):
        load_data(settings(tmp_path))


def test_a_class_of_one_image_cannot_be_held_out(tmp_path):
    write_images(tmp_path, 3)
    for number in (0, 1):
        (tmp_path / "cat" / f"{number}.png").unlink()
    with pytest.raises(UsageError, match="class 'cat' has 1 image"):
        load_data(settings(tmp_path))


def test_folders_that_are_not_what_was_meant_are_explained(tmp_path, three_parts):
    with pytest.raises(UsageError, match="nowhere, which does not exist"):
        load_data(settings(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"data\.test splits a single folder"):
        load_data(settings(three_parts, test=0.1))
    write_images(tmp_path / "other" / "val", 3)
    with pytest.raises(UsageError, match="holds val/ but no train/"):
        load_data(settings(tmp_path / "other"))


def test_the_folder_that_was_meant_is_named(three_parts, tmp_path):
    write_images(tmp_path / "above" / "dataset" / "train", 2)
    with pytest.raises(UsageError, match="1 class folder") as caught:
        load_data(settings(tmp_path / "above"))
    assert f"data.path={tmp_path / 'above' / 'dataset'}" in caught.value.hint
    with pytest.raises(UsageError, match="0 class folders") as caught:
        load_data(settings(tmp_path / "train" / "cat"))
    assert "12 images lie in it" in caught.value.hint
    assert f"name {tmp_path / 'train'}" in caught.value.hint


def test_a_folder_in_the_home_is_found(three_parts, monkeypatch):
    monkeypatch.setenv("HOME", str(three_parts.parent))
    assert len(load_data(settings(Path("~") / three_parts.name)).train) == 36


def test_what_the_images_are_is_told(three_parts, tmp_path):
    counts, pixels, *_ = load_data(settings(three_parts)).notes
    assert "3 classes" in counts
    assert "36 to train on, 12 held out for the search, 15 for the final test" in counts
    assert pixels == "typical size 20x21 pixels; in colour"
    for number in range(4):
        Image.new("L", (500, 400)).save(three_parts / "train" / "cat" / f"grey{number}.png")
    assert "4 of 67 looked at are grey" in load_data(settings(three_parts)).notes[1]
    for folder in ("photos/a", "photos/b"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (500, 400)).save(tmp_path / folder / f"{number}.png")
    told = load_data(settings(tmp_path / "photos")).notes[1]
    assert "all of 500x400 pixels" in told
    assert "data.channels=1" in told
    assert "scaled to 16 pixels" in told


def test_files_that_are_no_images_are_left_out_and_said(three_parts):
    (three_parts / "train" / "cat" / "notes.md").write_text("about cats")
    (three_parts / "train" / "cat" / ".hidden.png").write_text("no image")
    (three_parts / "train" / ".cache").mkdir()
    write_images(three_parts / "train" / "cat", 1, colours={"deeper": (9, 9, 9)})
    Image.new("RGB", (4, 4)).save(three_parts / "train" / "loose.png")
    data = load_data(settings(three_parts))
    assert len(data.train) == 37
    assert any("notes.md" in note for note in data.notes)
    assert any("1 image outside class folders" in note for note in data.notes)


def test_names_of_any_bytes_and_kinds_of_pixels_are_read(tmp_path):
    write_images(tmp_path, 2)
    odd = os.fsdecode(b"sp ace \xff\xe9.PNG")
    deep = np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "cat" / odd)
    Image.new("L", (9, 9), 77).save(tmp_path / "cat" / "grey.png")
    Image.new("RGBA", (9, 9), (1, 2, 3, 4)).save(tmp_path / "dog" / "through.png")
    Image.new("CMYK", (9, 9)).save(tmp_path / "dog" / "print.jpg")
    data = load_data(settings(tmp_path, heldout=3, verify=True))
    found = {}
    for part in (data.train, data.heldout):
        for index in range(len(part)):
            found[part.images.path(index).name] = part.images.read(index)
    assert all(image.mode == "RGB" for image in found.values())
    # Pillow's own conversion would clip 16 bits to white.
    assert np.array_equal(np.asarray(found[odd])[..., 0], deep >> 8)
    grey = load_data(settings(tmp_path, channels=1))
    batch, _ = next(evaluation_batches(grey, batch_size=2).batches(0))
    assert batch.shape[1] == 1


def test_pixels_of_unknown_range_are_refused(tmp_path):
    write_images(tmp_path, 4)
    Image.fromarray(np.zeros((5, 5), np.float32)).save(tmp_path / "cat" / "0.tiff")
    with pytest.raises(HwnasError, match=r"0\.tiff \(it has 32 bits per pixel"):
        load_data(settings(tmp_path))
    unseen = FileImages(root=tmp_path, names=np.array([b"cat/0.tiff"]), channels=3)
    with pytest.raises(HwnasError, match=r"0\.tiff: it has 32 bits per pixel"):
        unseen.read(0)


# --- data sets of timm


def test_a_data_set_that_timm_opens_is_used(three_parts):
    data = load_data(
        DataSettings(
            name="torch/image_folder",
            path=three_parts,
            image_size=16,
            workers=0,
            download=False,
            test_split="val",
        )
    )
    assert data.classes == ("cat", "dog", "eel")
    assert [len(data.train), len(data.heldout), len(data.test)] == [32, 4, 12]
    batches = training_batches(
        data, batch_size=8, augmentation=Augmentation(name="weak"), seed=0, workers=2
    )
    images, labels = next(iter(batches.batches(0)))
    assert images.shape == (8, 3, 16, 16)
    assert set(labels.tolist()) <= {0, 1, 2}
    pickle.dumps(data.train.images)


def test_a_data_set_that_timm_does_not_know_is_explained(tmp_path):
    with pytest.raises(HwnasError, match="cannot open torch/flowers"):
        load_data(DataSettings(name="torch/flowers", path=tmp_path))
