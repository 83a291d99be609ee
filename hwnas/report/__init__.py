"""The page of a run: figures and tables. May import `hwnas.pipeline` and what it may import."""
