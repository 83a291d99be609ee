"""Augmentation settings, mixing, and the batched path against timm's own operations."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image

from hwnas.errors import UsageError
from hwnas.training.augment import (
    AUGMENTATIONS,
    Augmentation,
    make_policy,
    mixing,
    training_transform,
)
from hwnas.training.draws import generator, number, seeded_globals
from hwnas.training.inmemory import PixelAugmenter, normalised
from hwnas.training.vision import import_timm

RGB = {"mean": (0.49, 0.48, 0.45), "std": (0.25, 0.24, 0.26)}
GREY = {"mean": (0.3,), "std": (0.35,)}


def some_pixels(count: int = 12, side: int = 20, channels: int = 3) -> np.ndarray:
    return generator(5, "order").integers(256, size=(count, side, side, channels), dtype=np.uint8)


def test_a_name_fills_what_is_not_given():
    deit = Augmentation(name="deit", mixup=0.1)
    assert (deit.mixup, deit.cutmix, deit.erasing, deit.repeats) == (0.1, 1.0, 0.25, 3)
    assert deit.policy == "rand-m9-mstd0.5-inc1"
    assert Augmentation() == Augmentation(name="weak")
    assert Augmentation(name="weak").policy == "rand-n1-m1-mstd0.5-inc1"
    assert not Augmentation(name="weak").mixes
    assert Augmentation(name="released").mixes
    assert Augmentation(**Augmentation(name="levit").model_dump()) == Augmentation(name="levit")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "week"}, "weak"),
        ({"policy": "randm9"}, "timm's notation"),
        ({"policy": "rand-x3"}, "timm's notation"),
        ({"crop_scale": (0.9, 0.2)}, "crop_scale"),
    ],
)
def test_wrong_values_name_what_is_accepted(values, said):
    with pytest.raises(UsageError) as caught:
        Augmentation(**values)
    assert said in caught.value.message


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match="mixups"):
        Augmentation(mixups=0.3)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("kind", [RGB, GREY], ids=["rgb", "grey"])
def test_every_augmentation_works_on_pixels_and_on_files(name, kind):
    wanted = Augmentation(name=name)
    pixels = some_pixels(count=64, channels=len(kind["mean"]))
    augmenter = PixelAugmenter(wanted, **kind, side=20)
    images = augmenter(pixels, augmenter.draw(64, generator(0, "images")))
    assert images.shape == (64, len(kind["mean"]), 20, 20)
    assert images.dtype == torch.float32
    assert torch.isfinite(images).all()
    transform = training_transform(wanted, side=24, **kind)
    mode = "RGB" if len(kind["mean"]) == 3 else "L"
    for seed in range(8):
        with seeded_globals(seed):
            image = transform(Image.fromarray(pixels[seed].squeeze()).convert(mode))
        assert image.shape == (len(kind["mean"]), 24, 24)


def test_a_weak_batch_is_timms_operations_on_the_cropped_images():
    augmentation = Augmentation(name="weak", crop_padding=0, flip=0.0)
    augmenter = PixelAugmenter(augmentation, **RGB, side=20)
    pixels = some_pixels(count=200)
    draws = augmenter.draw(200, generator(3, "images"))
    found = augmenter(pixels, draws)
    policy = make_policy(augmentation.policy, mean=RGB["mean"], side=20, interpolation="bicubic")
    changed = 0
    for index in range(200):
        image = Image.fromarray(pixels[index])
        if draws.operations[index, 0] >= 0:
            operation = policy.ops[draws.operations[index, 0]]
            operation.prob = 1.0
            with seeded_globals(0):
                random.seed(int(draws.seeds[index]))
                image = operation(image)
            changed += 1
        expected = normalised(np.array(image)[None], **RGB)
        assert torch.equal(found[index], expected[0])
    assert 70 < changed < 130


def test_operations_of_a_weak_batch_occur_as_often_as_in_timm():
    augmenter = PixelAugmenter(Augmentation(name="weak"), **RGB, side=20)
    operations = augmenter.draw(15_000, generator(1, "images")).operations
    counts = np.bincount(operations.reshape(-1) + 1, minlength=16)
    assert len(counts) == 16
    assert abs(counts[0] / 15_000 - 0.5) < 0.03
    assert np.all(np.abs(counts[1:] / 15_000 - 0.5 / 15) < 0.01)


def test_crops_shift_over_black_and_flips_mirror():
    augmentation = Augmentation(name="none", crop_padding=2, flip=1.0)
    augmenter = PixelAugmenter(augmentation, mean=(0.0,), std=(1.0,), side=6)
    pixels = some_pixels(count=4, side=6, channels=1)
    draws = augmenter.draw(4, generator(0, "images"))
    draws.offsets[:] = [(2, 2), (0, 2), (2, 0), (4, 2)]
    found = (augmenter(pixels, draws) * 255).round().to(torch.uint8).numpy()[:, 0]
    mirrored = pixels[..., 0][:, :, ::-1]
    assert np.array_equal(found[0], mirrored[0])
    assert np.array_equal(found[1][2:], mirrored[1][:-2])
    assert not found[1][:2].any()
    assert np.array_equal(found[2][:, :-2], mirrored[2][:, 2:])
    assert not found[2][:, -2:].any()
    assert np.array_equal(found[3][:-2], mirrored[3][2:])


def test_posterising_to_no_bits_gives_black_instead_of_an_error():
    policy = make_policy("v0", mean=(0.5,) * 3, side=8, interpolation="bicubic")
    operations = [operation for step in policy.policy for operation in step]
    posterise = next(one for one in operations if one.name == "Posterize" and one.magnitude == 2)
    posterise.prob = 1.0
    image = Image.fromarray(some_pixels(count=1)[0])
    assert not np.asarray(posterise(image)).any()
    strong = training_transform(Augmentation(policy="rand-n2-m10-p1.0-inc1"), side=8, **RGB)
    for seed in range(40):
        with seeded_globals(seed):
            strong(image)


def test_transforms_can_be_sent_to_worker_processes():
    for name in AUGMENTATIONS:
        transform = training_transform(Augmentation(name=name), side=8, **RGB)
        copied = pickle.loads(pickle.dumps(transform))
        image = Image.fromarray(some_pixels(count=1)[0])
        with seeded_globals(4):
            expected = transform(image)
        with seeded_globals(4):
            assert torch.equal(copied(image), expected)


def test_global_generators_are_put_back():
    augmenter = PixelAugmenter(Augmentation(name="deit"), **RGB, side=20)
    pixels = some_pixels(count=32)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    augmenter(pixels, augmenter.draw(32, generator(0, "images")))
    mix = mixing(Augmentation(name="deit"), smoothing=0.1, classes=3, seed=0)
    mix(torch.rand(2, 3, 4, 4, generator=torch.Generator()), torch.tensor([0, 1]), epoch=0, batch=0)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_mixing_is_timms_mixup_of_neighbours():
    augmentation = Augmentation(name="deit")
    mix = mixing(augmentation, smoothing=0.2, classes=4, seed=7)
    images, labels = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 2])
    kept = images.clone()
    kinds = set()
    for batch in range(20):
        mixed, targets = mix(images, labels, epoch=1, batch=batch)
        assert torch.equal(images, kept)
        pair = images[[1, 0]]
        expected = import_timm("data").Mixup(0.8, 1.0, label_smoothing=0.2, num_classes=4)
        with seeded_globals(number(7, "mixing", 1, batch)):
            pair_mixed, pair_targets = expected(images[:2].clone(), labels[:2])
        assert torch.equal(mixed[:2], pair_mixed)
        assert torch.equal(targets[:2], pair_targets)
        assert torch.allclose(targets.sum(1), torch.ones(6))
        # CutMix leaves pixels of one image or the other; mixup blends them.
        kinds.add(bool(((mixed[:2] == images[:2]) | (mixed[:2] == pair)).all()))
    assert kinds == {True, False}


def test_mixing_gives_ranks_what_a_single_process_has():
    mix = mixing(Augmentation(name="deit"), smoothing=0.1, classes=4, seed=7)
    images, labels = torch.rand(8, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 2, 1, 1])
    whole, targets = mix(images, labels, epoch=2, batch=5)
    for piece in (slice(0, 4), slice(4, 8)):
        mixed, soft = mix(images[piece], labels[piece], epoch=2, batch=5)
        assert torch.equal(mixed, whole[piece])
        assert torch.equal(soft, targets[piece])


def test_mixing_needs_an_even_batch_and_is_absent_when_not_asked_for():
    assert mixing(Augmentation(name="weak"), smoothing=0.1, classes=4, seed=0) is None
    mix = mixing(Augmentation(name="deit"), smoothing=0.1, classes=4, seed=7)
    with pytest.raises(UsageError, match="even"):
        mix(torch.rand(3, 3, 4, 4), torch.tensor([0, 1, 2]), epoch=0, batch=0)
