"""External teachers: timm models by name or with a file, and what is said when that fails."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.errors import HwnasError, UsageError
from hwnas.training.data import load_data
from hwnas.training.datasets import Data, DataSettings
from hwnas.training.teachers import load_teacher
from hwnas.training.vision import import_timm

SMALL = "mobilenetv3_small_050"


DIGITS = load_data(DataSettings(name="digits", image_size=32))


def teacher(*models: str, pretrained: bool = False, data: Data = DIGITS):
    return load_teacher(
        models, pretrained=pretrained, temperature=0.5, data=data, device=torch.device("cpu")
    )


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
        ("zzz", "unknown teacher 'zzz'; known: what timm.list_models"),
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
        teacher(SMALL, pretrained=True, data=imagenet(32))
    assert "\n" not in caught.value.message
    assert "NAME@FILE" in caught.value.hint


def imagenet(side: int) -> Data:
    """Data of ImageNet's classes; its images are not looked at."""
    names = tuple(map(str, range(1000)))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return replace(DIGITS, classes=names, channels=3, image_size=side, mean=mean, std=std)


def test_files_that_are_no_checkpoints_of_the_model_are_explained(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    model = import_timm("models").create_model(SMALL, num_classes=4, in_chans=1)
    files = {"four classes": model.state_dict(), "list": [1], "harm": {"state_dict": Harm()}}
    for name, content in files.items():
        torch.save(content, tmp_path / f"{name}.pth")
    (tmp_path / "empty.pth").touch()
    (tmp_path / "text.pth").write_text("hello world")
    for file in sorted(tmp_path.glob("*.pth")):
        with pytest.raises(HwnasError, match=file.stem):
            teacher(f"{SMALL}@{file}")
    assert not (tmp_path / "executed").exists()
    with pytest.raises(UsageError, match="a file does not say which model") as caught:
        teacher(str(tmp_path / "list.pth"))
    assert f"NAME@{tmp_path / 'list.pth'}" in caught.value.hint


def test_what_training_programs_wrap_around_weights_is_taken_off(tmp_path: Path) -> None:
    model = import_timm("models").create_model(SMALL, num_classes=10, in_chans=1)
    wrapped = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    other = {name: tensor + 1 for name, tensor in wrapped.items()}
    torch.save({"state_dict": other, "state_dict_ema": wrapped, "epoch": 3}, tmp_path / "w.pth")
    with torch.no_grad():
        wanted = (model.eval()(images()) / 0.5).softmax(-1)
    torch.testing.assert_close(teacher(f"{SMALL}@{tmp_path / 'w.pth'}")(images()), wanted)


def test_models_of_one_size_get_the_images_scaled_to_it() -> None:
    assert teacher("vit_tiny_patch16_224")(images()).shape == (2, 10)


def test_a_teacher_that_cannot_take_the_images_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="tresnet_m cannot take images of 8 pixels"):
        teacher("tresnet_m", data=replace(DIGITS, image_size=8))


def test_fetched_weights_get_images_normalised_as_they_were_trained_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timm = import_timm("models")
    name = "mobilenetv3_large_075"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=1000)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.4, 0.4, 0.4)}
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: model)
    data = imagenet(32)
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda _: None)
    got = teacher(name, pretrained=True, data=data)((pixels - mean) / std)
    with torch.no_grad():
        wanted = (model((pixels - 0.5) / 0.4) / 0.5).softmax(-1)
    torch.testing.assert_close(got, wanted)


def test_no_models_no_teacher() -> None:
    assert teacher() is None
