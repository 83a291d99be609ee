"""Commands in Markdown documents, as tests check and execute them.

The language of a fenced block says what is to be done with its lines that begin with a program:
`console` has them after `$ ` with what they print; `sh` (or none) has them alone, and tests that
prepare what they need execute them; `sh parsed` marks those that cannot run in a test, for want of
a device, a cluster or an hour: verb, options and values have to exist.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)( parsed)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_ENDS = {"|", ">", "<", "&&", ";", "&", ">>", "..."}
SHELL = ("", "sh", "bash")
PROGRAMS = ("hwnas", "cp", "python")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A fenced block. `parsed`: its commands cannot run in a test."""

    language: str
    parsed: bool
    body: str

    @property
    def lines(self) -> list[str]:
        """The lines of a block of shell, continued ones joined."""
        return self.body.replace("\\\n", " ").splitlines()


def blocks(document: Path) -> list[Block]:
    """Return the fenced blocks of a document."""
    return [
        Block(language=language, parsed=bool(parsed), body=body)
        for language, parsed, body in _BLOCK.findall(document.read_text())
    ]


def spans(document: Path) -> list[str]:
    """Return the inline code of a document."""
    return [" ".join(body.split()) for body in _SPAN.findall(_BLOCK.sub("", document.read_text()))]


def executable(document: Path) -> Iterator[list[str]]:
    """Yield the commands that can be executed, as words, in their order."""
    for block in blocks(document):
        if block.language in SHELL and not block.parsed:
            for line in block.lines:
                if line.startswith(tuple(f"{program} " for program in PROGRAMS)):
                    yield shlex.split(line, comments=True)


def mentioned(document: Path) -> Iterator[str]:
    """Yield the lines of shell, and the inline code, that contain commands of hwnas."""
    for block in blocks(document):
        if block.language in SHELL:
            yield from (line for line in block.lines if "hwnas " in line)
    yield from (span for span in spans(document) if span.startswith("hwnas "))


def arguments_in(line: str) -> list[str]:
    """Return what follows the program's name in a line of shell; empty if it is not called."""
    words = shlex.split(line, comments=True)
    if "hwnas" not in words:
        return []
    rest = words[words.index("hwnas") + 1 :]
    end = next((place for place, word in enumerate(rest) if word in _ENDS), len(rest))
    return rest[:end]
