"""`hwnas doctor`: what is installed and works, what the machine is, and whether it is quiet."""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from hwnas import __version__
from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.verbs import install_command

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
    "rich": "rich",
    "safetensors": "safetensors",
}
_EXTRAS = {
    "torch": "torch",
    "timm": "timm",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "scikit-learn": "sklearn",
    "pymoo": "pymoo",
    "jinja2": "jinja2",
    "openvino": "openvino",
    "ray": "ray",
}
# What packages raise on import when a library, a driver or a sister package does not fit.
_BROKEN = (ImportError, OSError, RuntimeError, AttributeError, ValueError)


@click.command()
@verb_options
def doctor(output: Output) -> None:
    """Show what is installed, what works, and whether this machine is quiet."""
    # Before anything else runs here, or this program itself would be the load.
    machine = _machine()
    packages = [_package(name, module) for name, module in {**_BASE, **_EXTRAS}.items()]
    document = {
        "hwnas": __version__,
        "python": sys.version.split()[0],
        "packages": packages,
        "machine": machine,
        "torch": _torch(packages),
        "onnxruntime_providers": _providers(packages),
    }
    output.result(document, _text(document))


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


def _machine() -> dict[str, Any]:
    from hwnas.profiling.machine import device, judge, read_machine

    readings = read_machine()
    verdict = judge(readings, privilege="none")
    here = device()
    return {
        "cpu": here.cpu,
        "cores": here.cores,
        "memory_mb": here.memory_mb,
        "os": here.os,
        "quiet": verdict.verdict == "fine",
        "reasons": list(verdict.reasons),
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


def _text(document: dict[str, Any]) -> str:
    machine, torch = document["machine"], document["torch"]
    rows = [
        ["cpu", f"{machine['cpu']}, {machine['cores']} cores"],
        ["memory", f"{machine['memory_mb'] / 1024:.1f} GiB"],
        ["os", machine["os"]],
        ["quiet now", "yes" if machine["quiet"] else "no: " + "; ".join(machine["reasons"])],
        ["gpu", ", ".join(torch["gpus"]) or "none" if torch else "unknown without torch"],
        ["torch threads", str(torch["threads"]) if torch else "no torch"],
        ["onnxruntime", ", ".join(document["onnxruntime_providers"]) or "not working"],
    ]
    packages = [
        [package["name"], package["version"] or "-", _state(package)]
        for package in document["packages"]
    ]
    return "\n".join(
        [
            f"hwnas {document['hwnas']}, Python {document['python']}",
            "",
            table(["machine", ""], rows, right=()),
            "",
            table(["package", "version", "state"], packages, right=()),
        ]
    )


def _state(package: dict[str, Any]) -> str:
    if package["works"]:
        return "works"
    if package["version"] is None:
        return f"get it: {package['get']}"
    return f"broken: {package['problem']} (try: {package['get']})"
