"""Run folders and what happens in them.

May import `hwnas.search`, `hwnas.training` and what they may import; never `hwnas.report`.
"""
