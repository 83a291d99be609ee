"""Build a supernet, cut subnets out of it, and see that each is the network that ran inside.

The weights are random: what is shown is that running a subnet on the shared weights, the network
that is cut out, and the one that is rebuilt from its two files give the same bits.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import hwnas
from hwnas.supernet import load_subnet, save_subnet


def main() -> int:
    """Print one line per subnet; return 1 if any differs."""
    space = hwnas.space("nano")
    supernet = hwnas.Supernet(space, seed=0).eval()
    archs = [space.smallest(), *space.sample(3, np.random.default_rng(0)), space.largest()]
    shared = sum(parameter.numel() for parameter in supernet.parameters())
    print(f"supernet of {space.name}: {shared:,} shared weights, {space.count():,} subnets\n")
    print("subnet             MACs  weights  cut out    from its files")
    same = True
    for arch, macs in zip(archs, space.cost(archs).macs, strict=True):
        images = torch.rand(2, 3, int(arch["resolution"]), int(arch["resolution"]))
        with torch.no_grad():
            inside = supernet(images, arch)
            subnet = supernet.extract(arch)
            outside = torch.equal(inside, subnet(images))
            with tempfile.TemporaryDirectory() as folder:
                save_subnet(subnet, space, arch, Path(folder))
                rebuilt = torch.equal(inside, load_subnet(Path(folder))(images))
        weights = sum(parameter.numel() for parameter in subnet.parameters())
        told = ["same bits" if equal else "DIFFERS" for equal in (outside, rebuilt)]
        print(f"{arch.digest[:12]}  {macs / 1e6:8.2f}M  {weights:7,}  {told[0]}  {told[1]}")
        same = same and outside and rebuilt
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
