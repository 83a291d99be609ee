"""The command line: the only place that prints. May import every other package."""
