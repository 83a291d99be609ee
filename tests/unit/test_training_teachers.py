"""External teachers: timm models by name or with a file, and what is said when that fails."""

from pathlib import Path

import pytest
import torch

from hwnas.errors import HwnasError, UsageError
from hwnas.training.teachers import load_teacher
from hwnas.training.vision import import_timm

SMALL = "mobilenetv3_small_050"


def teacher(*models: str, pretrained: bool = False, classes: int = 10, channels: int = 1):
    return load_teacher(
        models, pretrained=pretrained, temperature=0.5, classes=classes, channels=channels,
        device=torch.device("cpu"),
    )  # fmt: skip


def images() -> torch.Tensor:
    return torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def test_timm_models_predict_the_classes_of_the_data_from_its_channels() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        both = teacher(SMALL, SMALL)
    probabilities = both(images())
    assert probabilities.shape == (2, 10)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2))
    assert not probabilities.requires_grad


def test_a_file_gives_the_weights(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = import_timm("models").create_model(SMALL, num_classes=10, in_chans=1)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    # Also where weights from the internet are the default: the file comes first.
    loaded = teacher(f"{SMALL}@{tmp_path / 'weights.pth'}", pretrained=True)
    with torch.no_grad():
        wanted = (model.eval()(images()) / 0.5).softmax(-1)
    torch.testing.assert_close(loaded(images()), wanted)


def test_a_file_of_another_model_is_explained_in_one_line(tmp_path: Path) -> None:
    torch.save({"no.such.tensor": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(HwnasError, match=f"teacher {SMALL}@.* cannot be loaded") as caught:
        teacher(f"{SMALL}@{tmp_path / 'other.pth'}")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("mobilenetv3_smal_050", "unknown teacher 'mobilenetv3_smal_050'; did you mean mobile"),
        (f"{SMALL}@nowhere.pth", "nowhere.pth is no file"),
    ],
)
def test_wrong_names_get_near_ones(entry: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        teacher(entry)


def test_a_teacher_of_other_classes_is_refused_before_anything_is_fetched() -> None:
    with pytest.raises(UsageError, match="was trained on 1000 classes, the data have 10"):
        teacher(SMALL, pretrained=True)


def test_without_internet_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HwnasError, match=f"teacher {SMALL} cannot be loaded: ") as caught:
        teacher(SMALL, pretrained=True, classes=1000, channels=3)
    assert "\n" not in caught.value.message
    assert "NAME@FILE" in caught.value.hint


def test_no_models_no_teacher() -> None:
    assert teacher() is None
