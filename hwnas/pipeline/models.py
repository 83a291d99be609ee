"""ONNX models of architectures in any precision, for measuring: weights are generated.

A quantised model is made of the form whose linears are matrix products, as `hwnas.export` does
when it quantises a trained one, so that what is measured is what would be deployed.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from hwnas.errors import UsageError, unknown_name
from hwnas.profiling.records import ArchJson, Settings, network_of
from hwnas.profiling.sampling import space_of
from hwnas.spaces import Network

_CALIBRATION_IMAGES = 4  # ranges of noise; latency does not depend on them


def build_model(document: ArchJson, precision: str) -> bytes:
    """Return the ONNX file of an architecture document."""
    check_precisions([precision])
    space = space_of(document)
    return BUILDERS[precision](space.network(space.arch_from_json(document)))


def check_precisions(precisions: Iterable[str]) -> None:
    """Raise UsageError for a precision that no model can be built in."""
    for precision in precisions:
        if precision not in BUILDERS:
            if precision == "bf16":
                raise UsageError(
                    "no models are built in bf16; runtimes that have it make it from fp32",
                    "--precision fp32, and --precision bf16 of hwnas profile",
                )
            raise unknown_name("precision", precision, BUILDERS)


class BuildingProvider:
    """Builds models for `driver.profile`; those of the last architecture are kept."""

    def __init__(self) -> None:
        self._network = ""
        self._models: dict[str, bytes] = {}

    def __call__(self, arch: ArchJson, settings: Settings) -> bytes:
        """Return the ONNX file of an architecture; runtimes make bf16 of the fp32 model."""
        precision = "fp32" if settings.precision == "bf16" else settings.precision
        if network_of(arch) != self._network:
            self._network, self._models = network_of(arch), {}
        if precision not in self._models:
            self._models[precision] = build_model(arch, precision)
        return self._models[precision]


def _fp32(network: Network) -> bytes:
    from hwnas.export import onnx_from_description

    return onnx_from_description(network)


def _fp16(network: Network) -> bytes:
    from hwnas.export.quantise import to_half

    return to_half(_fp32(network))


def _with_products(network: Network) -> bytes:
    from hwnas.export import onnx_from_description

    return onnx_from_description(network, linears="product")


def _int8_dynamic(network: Network) -> bytes:
    from hwnas.export.quantise import quantise_dynamic

    return quantise_dynamic(_with_products(network))


def _int8_static(network: Network) -> bytes:
    from hwnas.export.quantise import quantise_static

    rng = np.random.default_rng(0)
    shape = (_CALIBRATION_IMAGES, network.channels, network.side, network.side)
    images = rng.random(shape, np.float32)
    return quantise_static(_with_products(network), [images])


BUILDERS: Mapping[str, Callable[[Network], bytes]] = {
    "fp32": _fp32,
    "fp16": _fp16,
    "int8_dynamic": _int8_dynamic,
    "int8_static": _int8_static,
}
