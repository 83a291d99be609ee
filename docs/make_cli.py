"""Write docs/cli.md from the commands: python docs/make_cli.py."""

from pathlib import Path

from hwnas.cli.reference import reference
from hwnas.io import write_atomic

if __name__ == "__main__":
    write_atomic(Path(__file__).with_name("cli.md"), reference())
