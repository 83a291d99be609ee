"""`hwnas completion`: what a shell has to read to complete commands of hwnas."""

import os
from pathlib import Path

import click

from hwnas.cli.completing import SHELLS, script
from hwnas.cli.output import Output, verb_options
from hwnas.errors import UsageError

_WHERE = {
    "bash": "echo 'eval \"$(hwnas completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(hwnas completion zsh)\"' >> ~/.zshrc",
    "fish": "hwnas completion fish > ~/.config/fish/completions/hwnas.fish",
}


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS), metavar="[bash|zsh|fish]")
@verb_options
def completion(output: Output, shell: str | None) -> None:
    """Print what completes verbs, options, spaces, recipes and runs when Tab is pressed.

    For bash: echo 'eval "$(hwnas completion bash)"' >> ~/.bashrc
    """
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in SHELLS:
        raise UsageError(
            f"for which shell? $SHELL names {chosen or 'none'}; accepted: {', '.join(SHELLS)}",
            "hwnas completion bash",
        )
    text = script(chosen)
    output.note(f"to have it always: {_WHERE[chosen]}")
    output.result({"shell": chosen, "script": text}, text.rstrip("\n"))
