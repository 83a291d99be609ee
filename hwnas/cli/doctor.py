"""`hwnas doctor`: what is installed and works, whether the machine is quiet, what is missing."""

import os
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import click

from hwnas import __version__
from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.verbs import install_command
from hwnas.io import units

if TYPE_CHECKING:
    from hwnas.pipeline.examining import Available, MachineState, Runtime

# Distribution -> the module that is imported to see whether it works.
_BASE = {
    "click": "click",
    "filelock": "filelock",
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "pillow": "PIL",
    "platformdirs": "platformdirs",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "safetensors": "safetensors",
}
_EXTRAS = {
    "torch": "torch",
    "timm": "timm",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "pymoo": "pymoo",
    "jinja2": "jinja2",
    "openvino": "openvino",
    "ray": "ray",
    "tensorboard": "tensorboard",
}
# What packages raise on import when a library, a driver or a sister package does not fit.
_BROKEN = (ImportError, OSError, RuntimeError, AttributeError, ValueError)


@click.command()
@verb_options
def doctor(output: Output) -> None:
    """Show what is installed, what works, and whether this machine is quiet."""
    from hwnas.pipeline.examining import data_sets, machine_state, runtimes

    # Before anything else runs here, or this program itself would be the load.
    state = machine_state()
    packages = [_package(name, module) for name, module in {**_BASE, **_EXTRAS}.items()]
    torch = _torch(packages)  # trying a runtime sets threads
    document = {
        "hwnas": __version__,
        "python": sys.version.split()[0],
        "packages": packages,
        "machine": _machine(state),
        "torch": torch,
        "threads": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "runtimes": [_runtime(runtime) for runtime in runtimes()],
        "onnxruntime_providers": _providers(packages),
        "data": [_data(found) for found in data_sets()],
    }
    output.result(document, _text(document))


def _runtime(runtime: "Runtime") -> dict[str, Any]:
    return {**asdict(runtime), "works": runtime.problem is None}


def _data(found: "Available") -> dict[str, Any]:
    return asdict(found)


def _package(name: str, module: str) -> dict[str, Any]:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return {"name": name, "version": None, "works": False, "get": install_command((module,))}
    try:
        import_module(module)
    except _BROKEN as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        reinstall = f"pip install --force-reinstall {name}"
        return {"name": name, "version": installed, "works": False, "problem": problem,
                "get": reinstall}  # fmt: skip
    return {"name": name, "version": installed, "works": True}


def _machine(state: "MachineState") -> dict[str, Any]:
    here, readings = state.device, state.preflight.readings
    return {
        "cpu": here.cpu,
        "cores": here.cores,
        "quota_cores": readings.quota_cores,
        "memory_mb": here.memory_mb,
        "free_memory_mb": state.free_memory_bytes >> 20,
        "free_disk_mb": state.free_disk_bytes >> 20,
        "os": here.os,
        "gpus": list(state.gpus),
        "governor": readings.governor,
        "privilege": state.privilege,
        "huge_pages": state.huge_pages_problem is None,
        "huge_pages_problem": state.huge_pages_problem,
        "energy_problem": state.energy_problem,
        "verdict": state.preflight.verdict,
        "quiet": state.preflight.verdict == "fine",
        "reasons": list(state.preflight.reasons),
        "busiest": [asdict(busy) for busy in state.busiest],
        "advice": list(state.advice),
    }


def _works(packages: list[dict[str, Any]], name: str) -> bool:
    return any(package["name"] == name and package["works"] for package in packages)


def _torch(packages: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not _works(packages, "torch"):
        return None
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(gpus)],
    }


def _providers(packages: list[dict[str, Any]]) -> list[str]:
    if not _works(packages, "onnxruntime"):
        return []
    import onnxruntime

    return list(onnxruntime.get_available_providers())


_VERDICTS = {
    "fine": "yes",
    "degraded": "yes, but with worse grades",
    "refused": "no (or with --force, graded so)",
}


def _text(document: dict[str, Any]) -> str:
    packages = [
        [package["name"], package["version"] or "-", _state(package)]
        for package in document["packages"]
    ]
    runtimes = [
        [runtime["name"], runtime["version"] or "-", _runtime_state(runtime)]
        for runtime in document["runtimes"]
    ]
    data = [
        [found["name"], found["place"] or "-", _data_state(found)] for found in document["data"]
    ]
    return "\n".join(
        [
            f"hwnas {document['hwnas']}, Python {document['python']}",
            "",
            table(["machine", ""], _machine_rows(document), right=()),
            "",
            table(["package", "version", "state"], packages, right=()),
            "",
            table(["runtime", "version", "state"], runtimes, right=()),
            "",
            table(["data", "place", "state"], data, right=()),
        ]
    )


def _machine_rows(document: dict[str, Any]) -> list[list[str]]:
    machine, torch = document["machine"], document["torch"]
    cores = f"{machine['cpu']}, {machine['cores']} cores"
    if machine["quota_cores"] is not None:
        cores += f", granted the time of {machine['quota_cores']:g}"
    threads = f"torch {torch['threads']}" if torch else "no torch"
    if document["threads"]["OMP_NUM_THREADS"]:
        threads += f", OMP_NUM_THREADS={document['threads']['OMP_NUM_THREADS']}"
    free = units.format_value(machine["free_disk_mb"] * 2**20 // 10**8 * 1e8, units.SIZE_BYTES)
    rows = [
        ["cpu", cores],
        ["memory", f"{machine['memory_mb'] / 1024:.1f} GiB, "
                   f"{machine['free_memory_mb'] / 1024:.1f} GiB of it free"],
        ["disk", f"{free} free here"],
        ["os", machine["os"]],
        ["gpu", _gpu(machine["gpus"], torch)],
        ["threads", threads],
        ["onnxruntime", ", ".join(document["onnxruntime_providers"]) or "not working"],
        ["privilege", {"none": "none: others can interrupt a measurement"}.get(
            machine["privilege"], machine["privilege"])],
        ["huge pages", machine["huge_pages_problem"] or "can be had: --pages huge"],
        ["energy", machine["energy_problem"] or "measured by the processor's counters"],
        ["measurable now", _VERDICTS[machine["verdict"]]],
    ]  # fmt: skip
    rows += [["", reason] for reason in machine["reasons"]]
    return rows + [["to improve it", advice] for advice in machine["advice"]]


def _gpu(driver: list[str], torch: dict[str, Any] | None) -> str:
    if torch and torch["gpus"]:
        return ", ".join(torch["gpus"])
    if driver:
        return f"{', '.join(driver)}; torch does not see it"
    return "none" if torch else "none that nvidia-smi knows"


def _runtime_state(runtime: dict[str, Any]) -> str:
    if runtime["problem"] is not None:
        return f"{runtime['problem']}; {runtime['hint']}"
    return "works" if runtime["tried"] else "installed; not tried, its first run takes minutes"


def _data_state(found: dict[str, Any]) -> str:
    if found["place"] is not None:
        return "here"
    if found["reachable"]:
        return str(found["get"])
    return f"{found['problem']}; get it: {found['get']}"


def _state(package: dict[str, Any]) -> str:
    if package["works"]:
        return "works"
    if package["version"] is None:
        return f"get it: {package['get']}"
    return f"broken: {package['problem']} (try: {package['get']})"
