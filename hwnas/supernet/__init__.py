"""Supernets: every architecture of a space from one set of weights.

May import only `hwnas.sharing` and what that may import.
"""

from hwnas.supernet.calibrate import calibrate
from hwnas.supernet.card import Card, read_card
from hwnas.supernet.evaluate import accuracy, count_right, evaluate
from hwnas.supernet.subnet import load_subnet, read_arch, save_subnet
from hwnas.supernet.supernet import Supernet

__all__ = [
    "Card",
    "Supernet",
    "accuracy",
    "calibrate",
    "count_right",
    "evaluate",
    "load_subnet",
    "read_arch",
    "read_card",
    "save_subnet",
]
