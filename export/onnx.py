"""ONNX files of plain networks, written block by block from their descriptions in milliseconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hwnas.errors import HwnasError, UsageError
from hwnas.export.blocks import emit
from hwnas.export.graph import OPSET, Graph, Linears, Scope, Value, to_model_bytes
from hwnas.export.pixels import PIXELS_SLOT, planes
from hwnas.export.weights import GeneratedWeights, SlotWeights, StoredWeights, Weights
from hwnas.io import write_atomic
from hwnas.io.preprocessing import Preprocessing
from hwnas.spaces import Network

INPUT, OUTPUT, BATCH = "images", "logits", "batch"
LARGEST_FILE = 2**31 - 1


class Exportable(Protocol):
    """What is read of a `hwnas.nets.PlainNetwork`, so that torch need not be imported."""

    description: Network

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors by name."""


def to_onnx(
    module: Exportable,
    path: Path | str,
    *,
    batch: int | None = None,
    opset: int = OPSET,
    linears: Linears = "convolution",
    pixels: Preprocessing | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write the network, in evaluation mode, to one ONNX file and return its path.

    `batch` fixes the batch size; None accepts any. `linears` is the form of the linear layers:
    "product" is slower in single precision and what `hwnas.export.quantise` needs. With `pixels`
    the graph takes the uint8 squares that this preprocessing cuts, and normalises them itself.
    The file computes what the module computes in evaluation mode, up to rounding. Raises
    HwnasError if batch norms have no statistics.
    """
    data = module_bytes(
        module, batch=batch, opset=opset, linears=linears, pixels=pixels, metadata=metadata
    )
    write_atomic(Path(path), data)
    return Path(path)


def module_bytes(
    module: Exportable,
    *,
    batch: int | None = None,
    opset: int = OPSET,
    linears: Linears = "convolution",
    pixels: Preprocessing | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return the bytes of the file that `to_onnx` writes."""
    description = getattr(module, "description", None)
    if not isinstance(description, Network):
        raise UsageError(
            f"cannot export a {type(module).__name__}; accepted: a plain network",
            "module = supernet.extract(arch)",
        )
    tensors = {
        name: tensor.detach().float().cpu().numpy()
        for name, tensor in module.state_dict().items()
        if tensor.is_floating_point()
    }
    weights = StoredWeights(tensors, "blocks.")
    graph = build_graph(description, weights, batch=batch, linears=linears, pixels=pixels)
    data = to_model_bytes(graph, opset=opset, metadata=metadata or {})
    if len(data) > LARGEST_FILE:
        raise HwnasError(f"the model has {len(data)} bytes; a single ONNX file holds 2 GB at most")
    return data


def onnx_from_description(
    network: Network,
    weights: Weights | None = None,
    *,
    batch: int | None = None,
    opset: int = OPSET,
    linears: Linears = "convolution",
    seed: int = 0,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return the ONNX model of a network description, without torch.

    The graph is the one that `to_onnx` writes. Weights are generated from `seed` unless given;
    their names are `<slot>.<name in the block's module>`.
    """
    graph = build_graph(network, weights or GeneratedWeights(seed), batch=batch, linears=linears)
    return to_model_bytes(graph, opset=opset, metadata=metadata or {})


def build_graph(
    network: Network,
    weights: Weights,
    *,
    batch: int | None = None,
    linears: Linears = "convolution",
    pixels: Preprocessing | None = None,
) -> Graph:
    """Return the graph of a network; the weights of slot s are asked for as `s.<name>`."""
    if batch is not None and batch < 1:
        raise UsageError(f"batch size {batch}; accepted: a whole number from 1, or none for any")
    graph = Graph(linears=linears)
    size: int | str = BATCH if batch is None else batch
    if pixels is None:
        graph.inputs.append(Value(INPUT, (size, network.channels, network.side, network.side)))
        x = INPUT
    else:
        _check_pixels(pixels, network)
        sides = (pixels.crop, pixels.crop, network.channels)
        graph.inputs.append(Value(INPUT, (size, *sides), "uint8"))
        x = planes(pixels, INPUT, Scope(graph=graph, slot=PIXELS_SLOT, weights=weights))
    for placed in network.blocks:
        of_slot = SlotWeights(weights, placed.slot)
        x = emit(placed, x, Scope(graph=graph, slot=placed.slot, weights=of_slot))
    graph.finish(x, Value(OUTPUT, (size, network.classes)))
    return graph


def _check_pixels(pixels: Preprocessing, network: Network) -> None:
    wanted = (network.side, network.channels)
    if (pixels.size, len(pixels.mean)) != wanted:
        raise UsageError(
            f"preprocessing makes {len(pixels.mean)} channels of {pixels.size} pixels; "
            f"accepted: {network.channels} of {network.side}, which the network takes"
        )
