"""Our networks in timm's registry behave as timm's own do."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hwnas.timm_models
from hwnas.errors import UsageError
from hwnas.nets import build_network
from hwnas.spaces import SPACES, space
from hwnas.supernet import Supernet, load_subnet, save_subnet
from hwnas.training.vision import import_timm

timm = import_timm("models")


@pytest.fixture(scope="module")
def subnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated subnet of nano for five classes of grey images."""
    of = space("nano", classes=5, channels=1, scaling="single")
    arch = of.sample(1, np.random.default_rng(5))[0]
    supernet = Supernet(of, seed=1).eval()
    supernet.calibrate(arch, [torch.randn(8, 1, 28, 28)])
    folder = tmp_path_factory.mktemp("subnet")
    save_subnet(supernet.extract(arch), of, arch, folder)
    return folder


def images(model: torch.nn.Module, count: int = 2) -> torch.Tensor:
    channels, side, _ = model.pretrained_cfg["input_size"]
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_every_space_with_networks_is_registered() -> None:
    ours = set(timm.list_models("hwnas_*"))
    assert ours == {f"hwnas_{name.replace('-', '_')}" for name in SPACES}
    assert ours <= set(hwnas.timm_models.__all__)
    assert "hwnas_nasvit" in timm.list_models(module="timm_models")


@pytest.mark.parametrize("name", sorted(SPACES))
def test_the_interface_of_timm_models(name: str) -> None:
    model = timm.create_model(f"hwnas_{name.replace('-', '_')}", num_classes=7).eval()
    description = space(name, classes=7).network(space(name).smallest())
    plain = build_network(description).eval()
    plain.load_state_dict(model.state_dict())
    x = images(model)
    with torch.no_grad():
        logits = model(x)
        assert torch.equal(logits, plain(x))
        last = model.forward_features(x)
        assert last.shape[1] == model.num_features
        assert torch.equal(model.forward_head(last), logits)
        embedded = model.forward_head(last, pre_logits=True)
        assert embedded.shape == (2, model.head_hidden_size)
        assert torch.equal(model.get_classifier()(embedded), logits)
        model.reset_classifier(0)
        assert torch.equal(model(x), embedded)
        model.reset_classifier(3)
        assert model(x).shape == (2, model.num_classes) == (2, 3)
    assert model.default_cfg["architecture"] == f"hwnas_{name.replace('-', '_')}"


@pytest.mark.parametrize("name", sorted(SPACES))
def test_maps_are_those_of_the_strides(name: str) -> None:
    registered = f"hwnas_{name.replace('-', '_')}"
    model = timm.create_model(registered, arch="largest", features_only=True).eval()
    side = model.default_cfg["input_size"][-1]
    assert side == max(SPACES[name]().genes["resolution"])
    with torch.no_grad():
        maps = model(images(model))
    info = model.feature_info
    assert [len(info), info.reduction()[0]] == [len(maps), 2]
    for found, channels, reduction in zip(maps, info.channels(), info.reduction(), strict=True):
        rounded_up = -(-side // reduction)
        assert found.shape == (2, channels, rounded_up, rounded_up)
    assert info.reduction() == [2**power for power in range(1, len(maps) + 1)]


def test_some_maps_need_only_some_blocks(subnet: Path) -> None:
    whole = timm.create_model("hwnas_nano", arch=subnet, pretrained=True).eval()
    some = timm.create_model(
        "hwnas_nano", arch=subnet, pretrained=True, features_only=True, out_indices=(0, 2)
    ).eval()
    x = images(whole)
    with torch.no_grad():
        last, every = whole.forward_intermediates(x)
        first, third = some(x)
        early = whole.forward_intermediates(
            x, indices=(1,), intermediates_only=True, stop_early=True
        )
    assert torch.equal(last, every[-1])
    assert torch.equal(first, every[0])
    assert torch.equal(third, every[2])
    assert torch.equal(early[0], every[1])
    assert len(some.model.blocks) < len(whole.blocks)
    assert not any("head" in name or "t4" in name for name in some.state_dict())
    assert [some.feature_info.channels(), some.feature_info.reduction()] == [
        [every[0].shape[1], every[2].shape[1]], [2, 8],
    ]  # fmt: skip


def test_weights_of_a_subnet_by_both_ways(subnet: Path) -> None:
    plain = load_subnet(subnet)
    by_folder = timm.create_model("hwnas_nano", arch=str(subnet), pretrained=True).eval()
    by_file = timm.create_model(
        "hwnas_nano", arch=subnet / "arch.json", num_classes=5, in_chans=1,
        options={"scaling": "single"}, checkpoint_path=subnet / "weights.safetensors",
    ).eval()  # fmt: skip
    maps = timm.create_model(
        "hwnas_nano", arch=subnet, features_only=True, out_indices=(1,),
        checkpoint_path=subnet / "weights.safetensors",
    ).eval()  # fmt: skip
    x = images(by_folder)
    assert x.shape[1] == 1
    with torch.no_grad():
        assert torch.equal(by_folder(x), plain(x))
        assert torch.equal(by_file(x), plain(x))
        expected = by_folder.forward_intermediates(x, indices=(1,), intermediates_only=True)
        assert torch.equal(maps(x)[0], expected[0])


def test_weights_with_another_number_of_classes(subnet: Path) -> None:
    model = timm.create_model("hwnas_nano", arch=subnet, pretrained=True, num_classes=3).eval()
    original = timm.create_model("hwnas_nano", arch=subnet, pretrained=True).eval()
    x = images(model)
    with torch.no_grad():
        assert model(x).shape == (2, 3)
        assert torch.equal(model.forward_features(x), original.forward_features(x))


def test_a_subnet_that_was_not_calibrated_uses_the_statistics_of_batches(tmp_path: Path) -> None:
    of = space("nano", classes=5)
    arch = of.smallest()
    save_subnet(Supernet(of).eval().extract(arch), of, arch, tmp_path)
    plain, weights = load_subnet(tmp_path), tmp_path / "weights.safetensors"
    x = images(timm.create_model("hwnas_nano", arch=tmp_path))
    with torch.no_grad():
        expected = plain(x)
        for own in ({"pretrained": True}, {"checkpoint_path": weights}):
            model = timm.create_model("hwnas_nano", arch=tmp_path, **own, num_classes=5).eval()
            assert torch.equal(model(x), expected)
            maps = timm.create_model(
                "hwnas_nano", arch=tmp_path, **own, features_only=True, out_indices=(1,)
            ).eval()
            wanted = model.forward_intermediates(x, indices=(1,), intermediates_only=True)
            assert torch.equal(maps(x)[0], wanted[0])
        other = timm.create_model("hwnas_nano", arch=tmp_path, pretrained=True, num_classes=3)
        assert torch.equal(other.eval().forward_features(x), model.forward_features(x))


def test_part_of_the_weights_keeps_the_statistics(subnet: Path) -> None:
    model = timm.create_model("hwnas_nano", arch=subnet, pretrained=True).eval()
    x = images(model)
    before = model(x)
    part = {"blocks.head.classify.bias": model.get_classifier().bias.detach() + 1}
    model.load_state_dict(part, strict=False)
    assert torch.allclose(model(x), before + 1, atol=1e-5)


@pytest.mark.parametrize("options", [{"classes": 9}, {"scaling": "none", "classes": 5}])
def test_other_options_than_those_of_a_subnet_are_refused(subnet: Path, options) -> None:
    with pytest.raises(UsageError, match=r"has options .*'classes': 5.*, not \{") as caught:
        timm.create_model("hwnas_nano", arch=subnet, options=options)
    assert "num_classes=" in caught.value.hint
    same = {"classes": 5, "scaling": "single"}
    model = timm.create_model("hwnas_nano", arch=subnet, options=same, num_classes=3)
    assert model.num_classes == 3


def test_genes_and_architectures_are_accepted() -> None:
    of = space("nano")
    arch = of.sample(1, np.random.default_rng(0))[0]
    shapes = []
    for given in (arch, dict(arch), arch.to_json()):
        model = timm.create_model("hwnas_nano", arch=given)
        shapes.append({name: tuple(t.shape) for name, t in model.state_dict().items()})
    assert shapes[0] == shapes[1] == shapes[2]


def test_dropout_and_stochastic_depth_act_in_training_only() -> None:
    model = timm.create_model("hwnas_nano", drop_rate=0.5, drop_path_rate=0.5)
    x = images(model, 8)
    torch.manual_seed(0)
    with torch.no_grad():
        assert not torch.equal(model.train()(x), model(x))
        assert torch.equal(model.eval()(x), model(x))


def test_other_sizes_are_scaled(subnet: Path) -> None:
    model = timm.create_model("hwnas_nano", arch=subnet, pretrained=True).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 1, 50, 40)).shape == (1, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "medium"}, "unknown architecture 'medium'"),
        ({"arch": 7}, "arch is 7; accepted: a subnet's folder"),
        ({"arch": {"resolution": 25}}, "resolution = 25 is not in space nano"),
        ({"pretrained": True}, "no weights are published"),
        ({"options": {"scale": "none"}}, "unknown option of space nano 'scale'"),
    ],
)
def test_mistakes_are_explained(arguments, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        timm.create_model("hwnas_nano", **arguments)


def test_a_subnet_of_another_space_is_refused(subnet: Path) -> None:
    with pytest.raises(UsageError, match="is of space 'nano', expected 'nasvit'") as caught:
        timm.create_model("hwnas_nasvit", arch=subnet)
    assert "hwnas_nano" in caught.value.hint


def test_checkpointing_and_other_poolings_are_refused() -> None:
    model = timm.create_model("hwnas_nano")
    model.set_grad_checkpointing(False)
    with pytest.raises(UsageError, match="not supported"):
        model.set_grad_checkpointing()
    with pytest.raises(UsageError, match="accepted: avg"):
        model.reset_classifier(3, global_pool="max")
    with pytest.raises(UsageError, match="accepted: NCHW"):
        model.forward_intermediates(images(model), output_fmt="NLC")
