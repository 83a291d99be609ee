"""Weight sharing: which entries of a shared tensor a smaller block takes, and how it borrows them.

May import only `hwnas.nets` and what that may import.
"""

from hwnas.sharing.picks import PICKS
from hwnas.sharing.shared import Shared

__all__ = ["PICKS", "Shared"]
