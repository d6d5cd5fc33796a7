"""`torchyard completion`: print a shell completion script."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json

SHELLS = ("bash", "zsh", "fish")

_HELP = """
\b
Examples:
  eval "$(torchyard completion bash)"                        for this shell
  torchyard completion bash >> ~/.bash_completion            for every bash shell
  torchyard completion fish > ~/.config/fish/completions/torchyard.fish

Print a completion script on stdout.
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(SHELLS))
@common_options
def completion(shell: str, as_json: bool) -> None:
    """Print the completion script of click."""
    from click.shell_completion import get_completion_class

    from torchyard.cli.group import program
    from torchyard.cli.main import COMPLETE_VARIABLE

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.UsageError(f"this version of click has no completion for {shell}")
    script = completion_class(program, {}, "torchyard", COMPLETE_VARIABLE).source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        print_data(script)
