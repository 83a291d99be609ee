"""What every profiling backend must do. A new backend adds a line to the table of the suite's test.

Each check takes the backend and a model that it can open, and raises AssertionError.
"""

from collections.abc import Callable
from pathlib import Path

from hwnas.errors import HwnasError, UsageError
from hwnas.profiling.backends import Backend, BuildCall
from hwnas.profiling.backends.base import ModelSource
from hwnas.profiling.measure import Plan, measure
from hwnas.profiling.records import Settings

Check = Callable[[Backend, ModelSource], None]


def describes_itself(backend: Backend, model: ModelSource) -> None:
    """It has a name, a version, precisions and an install hint."""
    assert backend.name
    assert backend.version()[0].isdigit()
    assert "fp32" in backend.precisions
    assert "pip install" in backend.hint


def runs_and_closes(backend: Backend, model: ModelSource) -> None:
    """A session runs repeatedly and can be closed."""
    session = backend.open(model, settings=Settings())
    for _ in range(3):
        took = session.run()
        assert took is None or took > 0
    session.close()


def runs_batches(backend: Backend, model: ModelSource) -> None:
    """A model with a free batch dimension runs with several samples."""
    session = backend.open(model, settings=Settings(batch=3))
    session.run()
    session.close()


def can_be_measured(backend: Backend, model: ModelSource) -> None:
    """The protocol gets positive times out of it."""
    session = backend.open(model, settings=Settings())
    latency = measure(session.run, clock="wall", plan=Plan(max_runs=20, max_s=1.0))
    session.close()
    assert latency.n >= 2
    assert latency.median_ms > 0


def refuses_unknown_precision(backend: Backend, model: ModelSource) -> None:
    """A precision that it cannot run is a usage error that lists the others."""
    error = _refusal(backend, model, Settings(precision="fp3"))
    assert isinstance(error, UsageError)
    assert "fp32" in error.message


def refuses_other_kinds(backend: Backend, model: ModelSource) -> None:
    """A model of the kind that it does not take is a usage error."""
    call = BuildCall(target="a:b", argument={})
    error = _refusal(backend, Path("model.onnx") if backend.takes == "module" else call, Settings())
    assert isinstance(error, UsageError)
    assert backend.name in error.message


def explains_bad_files(backend: Backend, model: ModelSource) -> None:
    """A file that is no model is an explained error of one line, not a crash."""
    if backend.takes == "onnx":
        error = _refusal(backend, Path(__file__), Settings())
        assert "\n" not in error.message


def _refusal(backend: Backend, model: ModelSource, settings: Settings) -> HwnasError:
    try:
        backend.open(model, settings=settings)
    except HwnasError as error:
        return error
    raise AssertionError(f"{backend.name} opened {model} with {settings}")


CHECKS: tuple[Check, ...] = (
    describes_itself,
    runs_and_closes,
    runs_batches,
    can_be_measured,
    refuses_unknown_precision,
    refuses_other_kinds,
    explains_bad_files,
)
