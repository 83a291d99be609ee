"""The verbs, as data: `hwnas --help` is printed from here without importing any of them."""

from dataclasses import dataclass

from hwnas.errors import MissingPackageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """A verb: where its command is, its short help, and the packages beyond the base install."""

    target: str
    help: str
    needs: tuple[str, ...] = ()


VERBS: dict[str, Verb] = {
    "init": Verb(
        target="hwnas.cli.train:init",
        help="Write the shipped recipe NAME, commented, to start one's own from.",
    ),
    "doctor": Verb(
        target="hwnas.cli.doctor:doctor",
        help="Show what is installed, what works, and whether this machine is quiet.",
    ),
    "space": Verb(
        target="hwnas.cli.space:space",
        help="List search spaces, show their choices, sample architectures.",
    ),
    "train": Verb(
        target="hwnas.cli.train:train",
        help="Train a supernet by RECIPE.",
        needs=("torch", "timm"),
    ),
    "run": Verb(
        target="hwnas.cli.run:run",
        help="Train, profile, fit, search, export, validate and report by RECIPE.",
        needs=("torch", "timm", "sklearn", "onnx"),
    ),
    "profile": Verb(
        target="hwnas.cli.profile:profile",
        help="Measure architectures on this machine, those of a PACK or of a --space.",
    ),
    "fleet": Verb(
        target="hwnas.cli.fleet:fleet",
        help="Measure a PACK on many devices at once, the machines of a Ray cluster.",
        needs=("ray",),
    ),
    "profiles": Verb(
        target="hwnas.cli.profiles:profiles",
        help="List, show, compare, merge and check profiles.",
    ),
    "pack": Verb(
        target="hwnas.cli.pack:pack",
        help="Write the models of many architectures into one file for a device without torch.",
        needs=("onnx",),
    ),
    "fit": Verb(
        target="hwnas.cli.fit:fit",
        help="Fit predictors of latency and accuracy on what was measured, and tell how good "
        "they are.",
        needs=("sklearn",),
    ),
    "search": Verb(
        target="hwnas.cli.search:search",
        help="Find the most accurate subnets of a run within budgets, and measure the best of "
        "them.",
    ),
    "extract": Verb(
        target="hwnas.cli.extract:extract",
        help="Cut a subnet out of a run's supernet, calibrated, measured and proved.",
        needs=("torch", "timm"),
    ),
    "finetune": Verb(
        target="hwnas.cli.finetune:finetune",
        help="Train an extracted subnet further, or from scratch.",
        needs=("torch", "timm"),
    ),
    "export": Verb(
        target="hwnas.cli.export:export",
        help="Write a subnet as ONNX, compared with torch and measured on this device.",
        needs=("torch", "timm", "onnx"),
    ),
    "validate": Verb(
        target="hwnas.cli.validate:validate",
        help="Check an exported model: outputs, accuracy, latency, memory, size.",
    ),
    "landmarks": Verb(
        target="hwnas.cli.landmarks:landmarks",
        help="Train and measure well-known networks as a run's subnets were, to compare with.",
        needs=("torch", "timm", "onnx", "onnxscript"),
    ),
    "compare": Verb(
        target="hwnas.cli.compare:compare",
        help="Show what differs between two runs, and what of it is more than chance.",
    ),
    "report": Verb(
        target="hwnas.cli.report:report",
        help="Write one self-contained HTML page about RUN: what to take, and why to believe it.",
        needs=("jinja2",),
    ),
    "show": Verb(
        target="hwnas.cli.show:show",
        help="Show what a file or folder is: model, manifest, subnet, front, run, profile.",
    ),
    "completion": Verb(
        target="hwnas.cli.completion:completion",
        help="Print what completes verbs, options, spaces, recipes and runs when Tab is pressed.",
    ),
    "import": Verb(
        target="hwnas.cli.import_weights:import_weights",
        help="Turn released weights into a supernet.",
        needs=("torch",),
    ),
}

# Module -> the extra that installs it, for modules that the base install does not bring.
EXTRA_OF: dict[str, str] = {
    "jinja2": "all",
    "onnx": "all",
    "onnxscript": "all",
    "pymoo": "all",
    "scipy": "all",
    "sklearn": "all",
    "timm": "all",
    "torch": "all",
    "openvino": "openvino",
    "ray": "ray",
    "tensorboard": "tensorboard",
}


def install_command(modules: tuple[str, ...]) -> str:
    """Return the command that installs these modules."""
    extras = sorted({EXTRA_OF[module] for module in modules if module in EXTRA_OF})
    return f"pip install 'hwnas[{','.join(extras)}]'" if extras else "pip install hwnas"


def require(verb: str, needs: tuple[str, ...]) -> None:
    """Raise MissingPackageError if packages that `verb` needs are not installed."""
    from importlib.util import find_spec

    missing = tuple(module for module in needs if find_spec(module) is None)
    if missing:
        raise MissingPackageError(
            f"`hwnas {verb}` needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed",
            install_command(missing),
        )
