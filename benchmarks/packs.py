"""What a pack of a space's architectures costs: seconds to build, pack and rebuild, and its size.

python -m benchmarks.packs --space nasvit -n 150
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import hwnas
from hwnas.export.onnx import onnx_from_description
from hwnas.profiling.packs import Model, build_model, read_pack, write_pack


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", default="nasvit")
    parser.add_argument("-n", type=int, default=150)
    arguments = parser.parse_args()
    space = hwnas.space(arguments.space)
    archs = [space.smallest(), space.largest()]
    archs += space.sample(max(arguments.n - 2, 0), np.random.default_rng(0))
    building = 0.0

    def models() -> Iterator[Model]:
        nonlocal building
        for arch in archs:
            start = time.process_time()
            onnx = onnx_from_description(space.network(arch))
            building += time.process_time() - start
            yield Model(arch=arch.to_json(), onnx=onnx)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models.pack"
        start, wall = time.process_time(), time.perf_counter()
        write_pack(path, models())
        packing, wall = time.process_time() - start - building, time.perf_counter() - wall
        size = path.stat().st_size
        pack = read_pack(path)
        start = time.process_time()
        sizes = [len(build_model(pack, model)) for model in pack.models]
        rebuilding = time.process_time() - start
    print(f"{len(archs)} models of {arguments.space}, {sum(sizes) / 2**20:.0f} MB as ONNX files")
    print(f"pack        {size / 2**20:8.2f} MB")
    print(f"build       {building:8.1f} s of processor time")
    print(f"pack        {packing:8.1f} s of processor time; both {wall:.1f} s on the wall")
    print(f"rebuild     {rebuilding:8.1f} s, {rebuilding / len(sizes):.3f} s a model")


if __name__ == "__main__":
    main()
