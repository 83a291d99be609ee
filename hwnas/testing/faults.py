"""Models that go wrong in the ways that a profiler has to survive."""

import os
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from hwnas.errors import HwnasError


def abort(argument: Mapping[str, Any]) -> NoReturn:
    """End the process as a failed check in native code does."""
    os.abort()


def hang(argument: Mapping[str, Any]) -> NoReturn:
    """Never return."""
    while True:
        time.sleep(1)


def refuse(argument: Mapping[str, Any]) -> NoReturn:
    """Raise an explained error."""
    raise HwnasError("cannot be built, on purpose")
