"""The ``xlm`` command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer

from xlm_broker import broker_version
from xlm_broker.cli.bench import bench
from xlm_broker.cli.chat import chat
from xlm_broker.cli.common import run_guarded, tolerant_output
from xlm_broker.cli.demo import demo
from xlm_broker.cli.doctor import doctor
from xlm_broker.cli.plan import plan
from xlm_broker.cli.profile import profile
from xlm_broker.cli.status import status

app = typer.Typer(
    name="xlm",
    help="A game and a language model share one GPU. Start with `xlm demo`; the broker itself is `xlm-broker`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"xlm {broker_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


# One line a command in `xlm --help`: typer cuts the first sentence of a docstring off at 80 columns.
_COMMANDS: Final[dict[Callable[..., None], str]] = {
    demo: "A game and two characters share one card.",
    chat: "Talk with a model in the terminal.",
    status: "What a running broker holds.",
    doctor: "Check this machine, say what is missing.",
    profile: "Measure this machine for the planner.",
    plan: "What would run where with a budget.",
    bench: "Ours against stock llama.cpp, measured.",
}
for _command, _short in _COMMANDS.items():
    app.command(short_help=_short)(_command)


def main() -> None:
    """Entry point of ``xlm``; ends the process with the exit codes of cli/common.py."""
    tolerant_output()
    sys.exit(run_guarded(app))


if __name__ == "__main__":
    main()
