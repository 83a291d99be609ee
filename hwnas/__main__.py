"""`python -m hwnas`."""

from hwnas.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
