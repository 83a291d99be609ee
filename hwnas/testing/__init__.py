"""Conformance suites: what every space, pick and plan must satisfy, for ours and anyone's.

Each suite is a table of named checks; a test module parametrises over it:

    @pytest.mark.parametrize("check", SPACE_CHECKS, ids=lambda check: check.__name__)
    def test_my_space(check): check(my_space())
"""

from hwnas.testing.spaces import SPACE_CHECKS
from hwnas.testing.supernets import SUPERNET_CHECKS, randomised_supernet

__all__ = ["SPACE_CHECKS", "SUPERNET_CHECKS", "randomised_supernet"]
