"""Run folders and what happens in them: a function for each verb, listed in docs/python.md.

May import `hwnas.search`, `hwnas.training` and what they may import; never `hwnas.report`.
"""
