"""``xlm demo``: a game and two talking characters share one card."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from xlm_broker.cli.common import EXIT_FAILED, ended_like_ctrl_c, interruption_told


def demo(
    seconds: Annotated[float, typer.Option(min=4.0, max=3600.0, help="How long the two-minute story takes.")] = 30.0,
    device: Annotated[str, typer.Option(help="auto, cuda, vulkan, sim or cpu.")] = "auto",
    model: Annotated[str, typer.Option(help="A GGUF file, or demo: the small real model that comes along.")] = "demo",
    sim_vram: Annotated[str, typer.Option(help="Memory of the virtual GPU.")] = "256MiB",
    sim_link: Annotated[str, typer.Option(help="Bandwidth of its link to the host, in GB/s.")] = "",
    out: Annotated[Path, typer.Option(help="Where summary.json, timeline.png and broker.log go.")] = Path("build/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON; progress on stderr.")] = False,
    live: Annotated[bool, typer.Option(help="The live page (needs a terminal), or plain lines.")] = True,
    verify: Annotated[bool, typer.Option(help="Afterwards play the same lines at a fixed budget and compare.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the game's sparks.")] = 1,
) -> None:
    """Plays a two-minute game story in thirty seconds while two characters talk through one model.

    The game takes video memory back for each scene and never waits for the model; the model goes on
    with what is left and not one of its words changes. Needs no GPU: without one it runs on the
    virtual GPU. Exit code 1 if a budget was exceeded or a token changed.

    Examples:

      xlm demo

      xlm demo --seconds 12 --no-live

      xlm demo --json --out /tmp/demo | jq .reclaims
    """
    from xlm_broker.demo.run import DemoOptions, run_demo
    from xlm_broker.demo.summary import failed, page

    options = DemoOptions(
        out=out, seconds=seconds, device=device, model=model, sim_vram=sim_vram, sim_link=sim_link,
        seed=seed, live=live and not as_json, verify=verify,
    )  # fmt: skip
    console = Console(highlight=False, stderr=as_json)
    tell = teller(console)
    with ended_like_ctrl_c(), interruption_told("stopped; nothing written but the broker's log"):
        summary = run_demo(options, console, tell)
    if as_json:
        json.dump(summary, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        for line in ["", *page(summary, str(out))]:
            tell(line)
    if failed(summary):
        raise typer.Exit(EXIT_FAILED)


def teller(console: Console) -> Callable[[str], None]:
    """Prints a line; on a terminal too narrow for it it goes on below between words, in a file it stays whole."""
    return partial(console.print, markup=False, soft_wrap=not console.is_terminal)
