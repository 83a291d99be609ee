"""CPU time of other precisions relative to our single-precision file, and how far they are off.

    python benchmarks/precisions.py [--rounds 20] [--sessions 4] [--privileged]

One thread, batch 1, generated weights and images; timed as in `onnx_forms.py`. `convolutions` is
dynamic quantisation of everything the runtime can quantise, which `hwnas.export` never does.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from architectures import reference_arch
from onnx_forms import best_seconds, open_session
from onnxruntime.quantization import quantize_dynamic

import hwnas
from hwnas.export import onnx_from_description
from hwnas.export.quantise import quantise_dynamic, quantise_static, to_half
from hwnas.profiling.privilege import privileged
from hwnas.spaces import Network


def images(network: Network, batch: int, seed: int) -> np.ndarray:
    shape = (batch, network.channels, network.side, network.side)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def products(network: Network) -> bytes:
    return onnx_from_description(network, linears="product")


def convolutions(network: Network) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(onnx.load_model_from_string(onnx_from_description(network)), path)
        return path.read_bytes()


PRECISIONS: dict[str, Callable[[Network], bytes]] = {
    "fp32 products": products,
    "dynamic int8": lambda network: quantise_dynamic(products(network)),
    "static int8": lambda network: quantise_static(
        products(network), (images(network, 4, seed) for seed in range(4))
    ),
    "fp16": lambda network: to_half(onnx_from_description(network)),
    "convolutions": convolutions,
}


def ratio(network: Network, model: bytes, *, rounds: int, ours_first: bool) -> tuple[float, float]:
    ours_model = onnx_from_description(network)
    order = (ours_model, model) if ours_first else (model, ours_model)
    opened = [open_session(each) for each in order]
    ours, other = opened if ours_first else reversed(opened)
    feeds = {"images": images(network, 1, 0)}
    expected, found = (session.run(None, feeds)[0] for session in (ours, other))
    ratios, before = [], best_seconds(ours, feeds)
    for _ in range(rounds):
        between = best_seconds(other, feeds)
        after = best_seconds(ours, feeds)
        ratios.append(2 * between / (before + after))
        before = after
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    return float(np.median(ratios)), difference


def run(wanted: argparse.Namespace) -> None:
    space = hwnas.space("nasvit")
    for arch, name in ((space.smallest(), "smallest"), (reference_arch(space), "371M")):
        network = space.network(arch)
        for precision, make in PRECISIONS.items():
            model = make(network)
            results = [
                ratio(network, model, rounds=wanted.rounds, ours_first=session % 2 == 0)
                for session in range(wanted.sessions)
            ]
            mean = np.mean([value for value, _ in results])
            print(
                f"{name:9s} {precision:14s} {mean:.3f} {len(model) / 1e6:5.1f} MB "
                f"difference {results[0][1]:.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--privileged", action="store_true", help="keep others off this core")
    wanted = parser.parse_args()
    with privileged(allowed=("fifo", "autogroup") if wanted.privileged else ()):
        run(wanted)


if __name__ == "__main__":
    main()
