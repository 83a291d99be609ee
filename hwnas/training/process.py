"""Process settings that make training on a CPU faster without changing any result.

glibc returns blocks of over 32 MB to the system whenever they are freed, so large activations
are page-faulted anew in every step; oneDNN and torch forget compiled shapes of which a supernet
has thousands. `docs/training-forms.md` has the figures. Preloading tcmalloc does it better still:
`LD_PRELOAD=libtcmalloc_minimal.so.4 hwnas train ...`.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

# Read by oneDNN and torch when they are loaded.
ENVIRONMENT: Mapping[str, str] = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",
    "LRU_CACHE_CAPACITY": "16384",
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4


def tune_process() -> bool:
    """Apply the settings; return whether this C library took them. Call before importing torch."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not sys.platform.startswith("linux") or "malloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        and mallopt(_M_MMAP_MAX, 0)
        and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    )
