"""That a subnet on its own is the network that ran inside the supernet: shown on images."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.errors import GateError
from hwnas.spaces import Arch
from hwnas.supernet.supernet import Supernet

# Of the largest logit. Both networks do the same operations in the same order; other memory
# layouts of weights may choose another kernel, and that rounds differently.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Logits of both networks on the same images.

    `part`: of the data the images are of, "noise" where there were no data. `indices`: of the
    images in that part. `inputs` and `logits`: SHA-256 of what both networks got, and of what the
    subnet on its own answered (little-endian float32). `difference`: the largest one of two
    logits, relative to the largest logit.
    """

    part: str
    images: int
    indices: tuple[int, ...]
    inputs: str
    logits: str
    difference: float
    equal_bits: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(self.indices))  # JSON has lists


def prove(
    supernet: Supernet,
    arch: Arch,
    network: nn.Module,
    images: Tensor,
    *,
    part: str,
    indices: tuple[int, ...] = (),
) -> Proof:
    """Return the proof that `network` is the subnet `arch`; raises GateError if it is not."""
    supernet.eval()
    network.eval()
    with torch.no_grad():
        inside = supernet(images, arch).float().cpu()
        alone = network(images).float().cpu()
    largest = float(inside.abs().max())
    difference = float((inside - alone).abs().max()) / max(largest, 1e-30)
    if not difference <= TOLERANCE:
        raise GateError(
            f"{arch.digest[:12]}: the subnet on its own differs from the one in the supernet by "
            f"{difference:.2g} of the largest logit; accepted: {TOLERANCE:g}",
            "the weights were damaged on the way to the disk, or this is a bug",
        )
    return Proof(
        part=part,
        images=len(images),
        indices=indices,
        inputs=tensor_digest(images),
        logits=tensor_digest(alone),
        difference=difference,
        equal_bits=torch.equal(inside, alone),
    )


def tensor_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's values as little-endian float32, in their logical order."""
    values = np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype="<f4")
    return hashlib.sha256(values.tobytes()).hexdigest()
