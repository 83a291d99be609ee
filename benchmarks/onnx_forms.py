"""What other ONNX forms of the same network cost: CPU time relative to the form we write.

    python benchmarks/onnx_forms.py [--rounds 25] [--sessions 2] [FORM ...]

Each alternative replaces one form of `hwnas.export`, must compute the same network, and is timed
in alternation with ours (one thread, batch 1, CPU clock of the thread; median over rounds of
neighbours' ratios). Memory is laid out differently in every session, which moves times by 1 %, so
each alternative is opened in several, an even number. `ours` against itself shows the noise.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import onnxruntime
from architectures import reference_arch

import hwnas
from hwnas.export import blocks, forms, onnx_from_description, transformer
from hwnas.export.forms import convolution
from hwnas.export.graph import Scope
from hwnas.export.weights import EPS
from hwnas.profiling.privilege import privileged
from hwnas.spaces import Network


def talk_as_product(scope, name, x, folded, *, pairs):
    weight, bias = folded
    flat = scope.reshape(f"{name}_flat", x, 0, weight.shape[1], pairs)
    y = scope.node("MatMul", name, scope.constant(f"{name}.weight", weight), flat)
    if bias is None:
        return y
    return scope.node("Add", f"{name}_bias", y, scope.constant(f"{name}.bias", bias[:, None]))


def talk_as_2d_convolution(scope, name, x, folded, *, pairs):
    weight, bias = folded
    y = convolution(scope, name, x, (weight[:, :, None, None], bias))
    return scope.reshape(f"{name}_flat", y, 0, weight.shape[0], pairs)


def norm_over_axes(block, scope, name, x):
    if not block.joint_norm:
        return OURS["norm"](block, scope, name, x)
    shape = (block.dim, block.side, block.side)
    ones = scope.graph.shared("ones/" + "_".join(map(str, shape)), np.ones(shape, np.float32))
    return scope.node("LayerNormalization", name, x, ones, axis=1, epsilon=EPS)


def norm_decomposed(block, scope, name, x):
    axes = (1, 2, 3) if block.joint_norm else (1,)
    centred = scope.node(
        "Sub", f"{name}_centred", x, scope.node("ReduceMean", f"{name}_mean", x, axes=axes)
    )
    square = scope.node("Mul", f"{name}_square", centred, centred)
    variance = scope.node("ReduceMean", f"{name}_variance", square, axes=axes)
    eps = scope.graph.shared("eps", np.array([EPS], np.float32))
    padded = scope.node("Add", f"{name}_padded", variance, eps)
    return scope.node("Div", name, centred, scope.node("Sqrt", f"{name}_deviation", padded))


def linear_1d(scope, name, x, folded, *, side):
    weight, bias = folded
    tokens = scope.reshape(f"{name}_tokens", x, 0, weight.shape[1], side * side)
    y = convolution(scope, name, tokens, (weight[..., 0], bias))
    return scope.reshape(f"{name}_map", y, 0, weight.shape[0], side, side)


def head_as_products(scope, name, x, folded, *, side):
    return forms.product(scope, name, x, folded, side=side)


def average_pool(block, x, scope, side):
    square = (block.stride, block.stride)
    return scope.node(
        "AveragePool",
        "shortcut_pool",
        x,
        kernel_shape=square,
        strides=square,
        pads=(side % 2,) * 4,
        count_include_pad=1,
    )


def gates_of_full_size(block, x, scope):
    """Gates repeated over the map, so that the product stays in the blocked layout."""
    original = Scope.node

    def node(self, operator, name, *inputs, **attributes):
        if operator == "Mul" and name == "squeeze":
            side = SIDES[self.slot]
            scales = np.array([1, 1, side, side], np.float32)
            scales = self.graph.shared(f"scales/{side}", scales)
            up = original(
                self, "Resize", "squeeze_up", inputs[1], "", scales, mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor",
            )  # fmt: skip
            inputs = (inputs[0], up)
        return original(self, operator, name, *inputs, **attributes)

    with patch.object(Scope, "node", node):
        return OURS["squeeze"](block, x, scope)


@contextmanager
def other_product_order() -> Iterator[None]:
    """Values times the shares transposed, which leaves the result as it is needed."""
    original = Scope.node

    def node(self, operator, name, *inputs, **attributes):
        if name in ("values", "pv_turned"):
            return inputs[0]
        if name != "pv":
            return original(self, operator, name, *inputs, **attributes)
        turned = original(self, "Transpose", "shares_turned", inputs[0], perm=(0, 1, 3, 2))
        return original(self, "MatMul", "pv", inputs[1], turned)

    with patch.object(Scope, "node", node):
        yield


OURS = {"norm": transformer.norm, "squeeze": blocks.squeeze_excite}
SIDES: dict[str, int] = {}
FORMS: dict[str, Callable[[], object]] = {
    "ours": ExitStack,
    "talk-product": lambda: patch.object(transformer, "talk", talk_as_product),
    "talk-2d": lambda: patch.object(transformer, "talk", talk_as_2d_convolution),
    "norm-layer": lambda: patch.object(transformer, "norm", norm_over_axes),
    "norm-decomposed": lambda: patch.object(transformer, "norm", norm_decomposed),
    "linear-1d": lambda: patch.object(transformer, "linear", linear_1d),
    "linear-2d": lambda: patch.object(forms, "ONE_VECTOR", 0),
    "linear-product": lambda: patch.object(transformer, "linear", forms.product),
    "head-product": lambda: patch.object(blocks, "linear", head_as_products),
    "pool-average": lambda: patch.object(blocks, "mean_pool", average_pool),
    "gates-full": lambda: patch.object(blocks, "squeeze_excite", gates_of_full_size),
    "values-first": other_product_order,
}


def open_session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def best_seconds(session: onnxruntime.InferenceSession, feeds: dict, runs: int = 3) -> float:
    session.run(None, feeds)  # brings its weights back into the caches
    times = []
    for _ in range(runs):
        start = time.thread_time()
        session.run(None, feeds)
        times.append(time.thread_time() - start)
    return min(times)


def opened(network: Network, form: str) -> onnxruntime.InferenceSession:
    with FORMS[form]():
        return open_session(onnx_from_description(network))


def ratio(network: Network, form: str, *, rounds: int, ours_first: bool) -> tuple[float, float]:
    """Return time relative to ours, and the largest relative difference of outputs."""
    SIDES.update({placed.slot: placed.block.side_after(placed.side) for placed in network.blocks})
    # The session that is opened second is the faster one by some percent.
    if ours_first:
        ours, other = opened(network, "ours"), opened(network, form)
    else:
        other, ours = opened(network, form), opened(network, "ours")
    shape = (1, network.channels, network.side, network.side)
    feeds = {"images": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    expected, found = (session.run(None, feeds)[0] for session in (ours, other))
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    ratios, before = [], best_seconds(ours, feeds)
    for _ in range(rounds):
        between = best_seconds(other, feeds)
        after = best_seconds(ours, feeds)
        ratios.append(2 * between / (before + after))
        before = after
    return float(np.median(ratios)), difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forms", nargs="*", default=list(FORMS), metavar="FORM")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--privileged", action="store_true", help="keep others off this core")
    wanted = parser.parse_args()
    with privileged(allowed=("fifo", "autogroup") if wanted.privileged else ()):
        run(wanted)


def run(wanted: argparse.Namespace) -> None:
    nasvit, paper = hwnas.space("nasvit"), hwnas.space("nasvit-paper")
    networks = {
        "smallest": nasvit.network(nasvit.smallest()),
        "371M": nasvit.network(reference_arch(nasvit)),
        "paper's smallest": paper.network(paper.smallest()),
    }
    print(f"{'form':16s}" + "".join(f"{name:>26s}" for name in networks))
    for form in wanted.forms:
        line = f"{form:16s}"
        for network in networks.values():
            results = [
                ratio(network, form, rounds=wanted.rounds, ours_first=session % 2 == 0)
                for session in range(wanted.sessions)
            ]
            values = [value for value, _ in results]
            difference = max(difference for _, difference in results)
            spread = (max(values) - min(values)) / 2
            line += f"  {np.mean(values):.3f} +-{spread:.3f} ({difference:.0e})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
