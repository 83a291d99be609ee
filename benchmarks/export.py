"""Latency of our ONNX files against naive exports, and of timm models as landmarks.

    python benchmarks/export.py [--nasvit 12] [--nano 6] [--rounds 30] [--module]

For each subnet several files of the same network: `ours`; `textbook`, torch's exporter on the
form that papers print (`benchmarks/textbook.py`), once with any batch as ours and once with the
batch fixed to 1; with --module also `module`, torch's exporter on our plain module.
Differences are relative to the largest output of the torch module. One thread, batch 1. Files of
a subnet are timed in alternation by the CPU clock of the thread, so that other work on the
machine changes the figures less; a ratio is the median over rounds of neighbours' ratios.
"""

import argparse
import itertools
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from architectures import reference_arch
from textbook import textbook

import hwnas
from hwnas.export import to_onnx
from hwnas.nets import PlainNetwork, build_network
from hwnas.nets.norms import BatchNorm
from hwnas.profiling.privilege import privileged
from hwnas.spaces import Arch, Space

LANDMARKS = (
    "levit_128s",
    "levit_128",
    "mobilenetv4_conv_small",
    "efficientvit_m4",
    "tf_efficientnet_b0",
)


def randomised(network: PlainNetwork) -> PlainNetwork:
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "scale_" in name or ("norm" in name and name.endswith("weight")):
                tensor.copy_(torch.rand(tensor.shape, generator=rng) + 0.5)
            elif tensor.dim() == 1:
                tensor.copy_(torch.randn(tensor.shape, generator=rng) * 0.1)
        for module in network.modules():
            if isinstance(module, BatchNorm):
                module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=rng) / 5)
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=rng) + 0.5)
    return network.eval()


def torch_export(
    module: torch.nn.Module, shape: tuple[int, ...], path: Path, *, fixed: bool = False
) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(1 if fixed else 2, *shape),),
            path,
            dynamo=True,
            dynamic_shapes=None if fixed else ({0: torch.export.Dim("batch")},),
            input_names=["images"],
            external_data=False,
            verbose=False,
        )
    return path


class Runner:
    """A file ready to be timed on one image."""

    def __init__(self, path: Path, images: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.feeds = {self.session.get_inputs()[0].name: images}
        self.nodes = len(onnx.load(path).graph.node)

    def output(self) -> np.ndarray:
        return self.session.run(None, self.feeds)[0]

    def best_ms(self, runs: int = 3) -> float:
        self.output()  # brings its weights back into the caches
        times = []
        for _ in range(runs):
            start = time.thread_time()
            self.output()
            times.append(time.thread_time() - start)
        return min(times) * 1e3


def timed(runners: dict[str, Runner], rounds: int) -> dict[str, np.ndarray]:
    for runner in runners.values():
        runner.best_ms()
    times = {name: [] for name in runners}
    for _, (name, runner) in itertools.product(range(rounds), runners.items()):
        times[name].append(runner.best_ms())
    return {name: np.array(values) for name, values in times.items()}


def compare(space: Space, arch: Arch, *, rounds: int, module: bool, folder: Path) -> dict:
    description = space.network(arch)
    network = randomised(build_network(description))
    shape = (description.channels, description.side, description.side)
    start = time.process_time()
    files = {"ours": to_onnx(network, folder / "ours.onnx")}
    seconds = time.process_time() - start
    naive = textbook(network)
    files["textbook"] = torch_export(naive, shape, folder / "any.onnx")
    files["textbook-1"] = torch_export(naive, shape, folder / "fixed.onnx", fixed=True)
    if module:
        files["module"] = torch_export(network, shape, folder / "module.onnx")
    images = torch.randn(1, *shape, generator=torch.manual_seed(1))
    with torch.inference_mode():
        expected = network(images).numpy()
    runners = {name: Runner(path, images.numpy()) for name, path in files.items()}
    differences = {
        name: float(np.abs(runner.output() - expected).max() / np.abs(expected).max())
        for name, runner in runners.items()
    }
    times = timed(runners, rounds)
    ratios = {name: float(np.median(values / times["ours"])) for name, values in times.items()}
    text = [f"{space.name:7s} {int(space.cost([arch]).macs[0]) / 1e6:8.2f}M ours "]
    text.append(f"{np.median(times['ours']):7.3f} ms {runners['ours'].nodes:5d} nodes ")
    text.append(f"{differences['ours']:.1e} written in {seconds:.2f} s")
    for name in [name for name in files if name != "ours"]:
        text.append(f" | {name} {ratios[name]:.3f}x {runners[name].nodes:5d} nodes ")
        text.append(f"{differences[name]:.1e}")
    print("".join(text), flush=True)
    return ratios | {"difference": differences["ours"]}


def landmarks(rounds: int, folder: Path) -> None:
    import timm
    from torch.utils.flop_counter import FlopCounterMode

    for name in LANDMARKS:
        model = timm.create_model(name).eval()
        fuse = getattr(timm.utils.model, "reparameterize_model", None)
        model = fuse(model) if fuse else model
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, 224, 224))
        torch_export(model, (3, 224, 224), folder / "timm.onnx")
        runner = Runner(folder / "timm.onnx", np.zeros((1, 3, 224, 224), np.float32) + 0.5)
        ms = np.median(timed({name: runner}, rounds)[name])
        macs = counter.get_total_flops() / 2e6
        print(f"timm    {macs:8.2f}M {name} {ms:.3f} ms {runner.nodes} nodes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nasvit", type=int, default=12)
    parser.add_argument("--nano", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--no-landmarks", action="store_true")
    parser.add_argument("--privileged", action="store_true", help="keep others off this core")
    wanted = parser.parse_args()
    with privileged(allowed=("fifo", "autogroup") if wanted.privileged else ()):
        run(wanted)


def run(wanted: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    nasvit, nano = hwnas.space("nasvit"), hwnas.space("nano")
    archs = [(nasvit, nasvit.smallest()), (nasvit, reference_arch(nasvit))]
    rng = np.random.default_rng(0)
    sampled = nasvit.sample(max(0, wanted.nasvit - 2), rng, macs=(190e6, 900e6))
    archs = archs[: wanted.nasvit] + [(nasvit, arch) for arch in sampled]
    archs += [(nano, arch) for arch in nano.sample(wanted.nano, rng)]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for space, arch in archs:
            results.append(
                compare(
                    space,
                    arch,
                    rounds=wanted.rounds,
                    module=wanted.module,
                    folder=Path(folder),
                )
            )
        if not wanted.no_landmarks:
            landmarks(wanted.rounds, Path(folder))
    for name in ("textbook", "textbook-1", "module"):
        ratios = [result[name] for result in results if name in result]
        if ratios:
            print(f"{name}: median {np.median(ratios):.3f}x, smallest {min(ratios):.3f}x")
    worst = max((result["difference"] for result in results), default=0.0)
    print(f"{len(results)} subnets, largest relative difference {worst:.1e}")


if __name__ == "__main__":
    main()
