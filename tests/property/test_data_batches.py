"""The split and the batches: disjoint, stratified, and dependent on their arguments alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.errors import UsageError
from hwnas.training.augment import AUGMENTATIONS, Augmentation
from hwnas.training.datasets import Data, MemoryImages, Part
from hwnas.training.loader import Piece, evaluation_batches, training_batches
from hwnas.training.split import split

CLASSES = ("a", "b", "c")
counts = st.lists(st.integers(2, 30), min_size=3, max_size=3)


def labels_of(sizes: list[int], seed: int) -> np.ndarray:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(labels).astype(np.int64)


def made_data(count: int = 60, side: int = 6, channels: int = 1) -> Data:
    randomness = np.random.default_rng(count)
    pixels = randomness.integers(256, size=(count, side, side, channels), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64)
    part = Part(name="train", images=MemoryImages(pixels=pixels), labels=labels)
    return Data(
        name="made",
        classes=tuple(map(str, range(count))),
        channels=channels,
        image_size=side,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        flips=True,
        train=part,
        heldout=part,
        test=None,
        preprocessing={},
        workers=0,
    )


DATA = made_data()


@given(sizes=counts, share=st.floats(0.01, 0.6), seed=st.integers(0, 1000))
def test_a_split_is_disjoint_complete_stratified_and_repeatable(sizes, share, seed):
    labels = labels_of(sizes, seed)
    rest, aside = split(labels, CLASSES, part="heldout", wanted=share, seed=seed)
    assert sorted([*rest, *aside]) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        taken = int((labels[aside] == label).sum())
        assert 1 <= taken < size
        # At most one away from the exact share, but for the minimum of one and rounding of it all.
        assert taken <= max(1, np.ceil(size * share) + 1)
        assert taken >= min(size - 1, np.floor(size * share) - 1)
    again = split(labels, CLASSES, part="heldout", wanted=share, seed=seed)
    assert all(np.array_equal(one, two) for one, two in zip((rest, aside), again, strict=True))


@given(sizes=counts, data=st.data())
def test_a_count_is_met_exactly(sizes, data):
    labels = labels_of(sizes, 0)
    wanted = data.draw(st.integers(len(sizes), sum(sizes) - len(sizes)))
    _, aside = split(labels, CLASSES, part="heldout", wanted=wanted, seed=3)
    assert len(aside) == wanted


@given(seed=st.integers(0, 100))
def test_another_seed_or_purpose_is_another_split(seed):
    labels = labels_of([30, 30, 30], 0)
    one = split(labels, CLASSES, part="heldout", wanted=0.5, seed=seed)[1]
    assert not np.array_equal(
        one, split(labels, CLASSES, part="heldout", wanted=0.5, seed=seed + 1)[1]
    )
    assert not np.array_equal(one, split(labels, CLASSES, part="test", wanted=0.5, seed=seed)[1])


def test_a_split_that_leaves_nothing_names_the_class():
    labels = np.array([0, 0, 1, 2, 2], np.int64)
    with pytest.raises(UsageError, match="class 'b' has 1 image"):
        split(labels, CLASSES, part="heldout", wanted=0.2, seed=0)
    with pytest.raises(UsageError, match="must keep at least one"):
        split(np.repeat([0, 1, 2], 2), CLASSES, part="heldout", wanted=4.0, seed=0)


def all_batches(batches, epoch, start=0):
    return list(batches.batches(epoch, start=start))


@settings(max_examples=30)
@given(
    name=st.sampled_from(sorted(AUGMENTATIONS)),
    world=st.sampled_from([2, 3, 4]),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_the_ranks_pieces_are_the_batch_of_one_process(name, world, epoch, seed):
    def batches(piece):
        return training_batches(
            DATA, batch_size=24, augmentation=Augmentation(name=name), seed=seed, piece=piece
        )

    whole = all_batches(batches(Piece()), epoch)
    pieces = [all_batches(batches(Piece(rank=rank, world=world)), epoch) for rank in range(world)]
    assert len(whole) == 2
    for number, (images, labels) in enumerate(whole):
        mine = [piece[number] for piece in pieces]
        assert torch.equal(torch.cat([piece[0] for piece in mine]), images)
        assert torch.equal(torch.cat([piece[1] for piece in mine]), labels)


@settings(max_examples=30)
@given(
    name=st.sampled_from(sorted(AUGMENTATIONS)), start=st.integers(0, 6), epoch=st.integers(0, 3)
)
def test_resuming_inside_an_epoch_gives_bit_equal_batches(name, start, epoch):
    def batches():
        return training_batches(DATA, batch_size=10, augmentation=Augmentation(name=name), seed=1)

    whole = all_batches(batches(), epoch)
    np.random.seed(start)
    rest = all_batches(batches(), epoch, start)
    assert len(rest) == len(whole) - start
    for (images, labels), (expected, expected_labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, expected_labels)


@given(batch_size=st.integers(1, 60))
def test_an_epoch_shows_every_image_at_most_once_and_epochs_differ(batch_size):
    batches = training_batches(
        DATA, batch_size=batch_size, augmentation=Augmentation(name="none"), seed=0
    )
    first = torch.cat([labels for _, labels in batches.batches(0)]).tolist()
    second = torch.cat([labels for _, labels in batches.batches(1)]).tolist()
    assert len(batches) == 60 // batch_size
    assert len(set(first)) == len(first) == len(batches) * batch_size
    assert first != second


@given(batch_size=st.integers(2, 60), repeats=st.integers(2, 4))
def test_repeats_are_in_one_batch_and_never_neighbours_that_are_mixed(batch_size, repeats):
    augmentation = Augmentation(name="none", repeats=repeats)
    batches = training_batches(DATA, batch_size=batch_size, augmentation=augmentation, seed=0)
    seen: set[int] = set()
    for _, labels in batches.batches(0):
        assert len(labels) == batch_size
        distinct = set(labels.tolist())
        assert len(distinct) == -(-batch_size // repeats)
        assert not seen & distinct
        seen |= distinct
        if len(distinct) > 1:
            assert all(labels[i] != labels[i + 1] for i in range(0, batch_size - 1, 2))


@given(batch_size=st.integers(1, 70), world=st.integers(1, 4), limit=st.integers(1, 80))
def test_evaluation_shows_every_image_once_in_order(batch_size, world, limit):
    labels = []
    parts = [
        evaluation_batches(
            DATA, batch_size=batch_size, limit=limit, piece=Piece(rank=rank, world=world)
        )
        for rank in range(world)
    ]
    for piece in parts:
        labels.extend(label for _, found in piece.batches(0) for label in found.tolist())
    assert len(labels) == min(limit, 60)
    assert len(set(labels)) == len(labels)
    if world == 1:
        assert labels == sorted(labels)


@pytest.mark.parametrize(
    ("batch_size", "world", "said"), [(61, 1, "60 images"), (9, 2, "2 processes"), (0, 1, "share")]
)
def test_batches_that_cannot_be_are_refused(batch_size, world, said):
    with pytest.raises(UsageError, match=said):
        training_batches(
            DATA,
            batch_size=batch_size,
            augmentation=Augmentation(),
            seed=0,
            piece=Piece(rank=0, world=world),
        )


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="rank 2 of 2"):
        Piece(rank=2, world=2)


def test_data_whose_meaning_flips_change_is_not_flipped():
    pixels = np.zeros((4, 6, 6, 1), np.uint8)
    pixels[:, :, :2] = 255
    part = Part(name="train", images=MemoryImages(pixels=pixels), labels=np.zeros(4, np.int64))
    fields = {name: getattr(DATA, name) for name in Data.__slots__}
    data = Data(**{**fields, "flips": False, "train": part})
    batches = training_batches(
        data, batch_size=4, augmentation=Augmentation(name="none", crop_padding=0), seed=0
    )
    for epoch in range(5):
        for images, _ in batches.batches(epoch):
            assert (images[..., :2] > 0).all()
            assert (images[..., 2:] < 0).all()
