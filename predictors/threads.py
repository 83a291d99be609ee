"""Fitting on one thread of linear algebra.

numpy and scipy each bring an OpenBLAS with threads of its own. scipy's splits even the inverse of a
matrix of a hundred rows, thousands of times in a fit, and its idle threads spin on cores that the
next product of numpy's would need: several times the time of one thread, and worse on a busy
machine. The matrices of a fit never pay for a second thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the body with one thread in every BLAS of the process; afterwards it is as before."""
    import scipy.linalg.lapack  # noqa: F401 - only a library that is loaded can be limited
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield
