"""Huge pages for what a runtime allocates: a setting that costs nothing, where the system has it.

With pages of 4 kB a model whose weights and feature maps exceed the caches of a core waits for
address translations, and how long depends on the neighbours of a virtual machine and on luck from
process to process. The C library asks for pages of 2 MB if the environment of the process tells it
to, before it starts.
"""

import platform
import sys
from pathlib import Path

from hwnas.errors import HwnasError
from hwnas.profiling.records import Pages

TUNABLE = "glibc.malloc.hugetlb=1"
VARIABLE = "GLIBC_TUNABLES"
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SINCE = (2, 35)


def page_environment(pages: Pages, *, others: str | None = None) -> dict[str, str]:
    """Return the variables that a process with such pages has to be started with.

    `others`: tunables of the C library that are to stay.
    """
    if pages == "default":
        return {}
    return {VARIABLE: f"{others}:{TUNABLE}" if others else TUNABLE}


def huge_pages_problem(kernel: Path = _KERNEL) -> str | None:
    """Return why processes cannot have huge pages here, None if they can."""
    if sys.platform != "linux":
        return f"{platform.system()} has no setting for them"
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if library != "glibc" or numbers < _SINCE:
        return f"the C library is {library or 'not glibc'} {version}; accepted: glibc 2.35 or newer"
    try:
        chosen = kernel.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return f"the kernel has none ({kernel} is missing)"
    if chosen not in ("always", "madvise"):
        return f"{kernel} says {chosen!r}; accepted: always, madvise"
    return None


def check_pages(pages: Pages) -> None:
    """Raise HwnasError if processes cannot have such pages here."""
    problem = huge_pages_problem() if pages == "huge" else None
    if problem is not None:
        raise HwnasError(f"no huge pages on this device: {problem}", "measure with --pages default")
