"""Starting Python again, with the modules of this process and none of the present folder.

There, a file called random.py would stand in for the standard module.
"""

import os
import sys
from collections.abc import Mapping


def module_command(name: str) -> list[str]:
    """Return the beginning of a command that runs a module."""
    return [sys.executable, "-P", "-m", name]


def module_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for such a command: this one's, with changes."""
    return {
        **os.environ,
        **changes,
        "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
    }
