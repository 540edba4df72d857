"""``xlm-broker``: one model, shared by the games of this machine under one VRAM budget."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Final

import typer

from xlm._commands import to_type
from xlm.errors import DeviceError, EndpointError, ModelError, XlmError
from xlm_broker import broker_version
from xlm_broker.cli.output import output_or_one_line
from xlm_broker.config import Config, Options, build, defaults, environment_name

EXIT_OK: Final = 0
EXIT_USAGE: Final = 2
EXIT_ENDPOINT: Final = 3
EXIT_MODEL: Final = 4
EXIT_DEVICE: Final = 5
EXIT_INTERNAL: Final = 70  # EX_SOFTWARE of sysexits.h

_HELP: Final = """Serve one language model to the games of this machine, under one VRAM budget that they set live.

The broker itself never touches the GPU: a child process (the engine) does, and is
restarted if it dies. Stop it with Ctrl-C or SIGTERM.

\b
Examples:
  xlm-broker --model demo
      the small demo model; a real GPU if there is one, else the virtual GPU
  xlm-broker --model npc.gguf --budget 3GiB
      never more than 3 GiB of VRAM
  xlm-broker --model eyes.gguf --mmproj mmproj-eyes.gguf
      a model that sees: npc.say("What is this?", images=["frame.png"])
  xlm-broker --model npc.gguf --budget-from-game --budget-idle 1GiB
      the running game decides; 1 GiB while none is connected
  xlm-broker --model demo --device sim --sim-vram 96MiB --sim-link 12
      a virtual GPU with 96 MiB behind a 12 GB/s link
  xlm-broker --model demo --endpoint 'tcp://127.0.0.1:*' --ready-file ready.json
      any free port; ready.json names it once the model is loaded

Sizes are bytes or have a unit: 1048576, 96MiB, 1.5GiB. Every option can also be
given in the environment: --sim-vram as XLM_SIM_VRAM, --endpoint as XLM_ENDPOINT.

\b
Exit codes:
  0   stopped as asked
  2   an option is wrong
  3   the endpoint is in use, not local, too long or forbidden
  4   the demo model is not installed
  5   --require-gpu and no usable GPU
  70  internal error

A model file that cannot be loaded does not end the broker: its state, the log and the
ready-file say what is wrong, and it tries again when the file changes.
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
_DEFAULTS: Final = defaults()


def _option(flag: str, text: str, *also: str, **more: Any) -> Any:
    """``also``: other names of it; those of ``xlm plan`` are understood here too."""
    return typer.Option(flag, *also, help=text, envvar=environment_name(flag), show_envvar=False, **more)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xlm-broker {broker_version()}")
        raise typer.Exit(EXIT_OK)


@app.command(help=_HELP)
def run(
    model: Annotated[str, _option("--model", "GGUF file, or 'demo' for the small model of the package extra.")],
    device: Annotated[str, _option("--device", "auto, cuda, vulkan, sim (virtual GPU) or cpu.")] = _DEFAULTS["device"],
    endpoint: Annotated[
        str | None,
        _option("--endpoint", "ipc:///absolute/path or tcp://127.0.0.1:PORT.  [default: a socket of your own]"),
    ] = _DEFAULTS["endpoint"],
    budget: Annotated[str, _option("--budget", "VRAM for the model.  [default: all the device has]")] = "",
    budget_from_game: Annotated[
        bool, _option("--budget-from-game", "The connected games decide the budget.")
    ] = _DEFAULTS["budget_from_game"],
    budget_idle: Annotated[
        str, _option("--budget-idle", "With --budget-from-game: the budget while no game has set one.")
    ] = _DEFAULTS["budget_idle"],
    budget_max: Annotated[str, _option("--budget-max", "Never more than this, whoever asks.")] = "",
    headroom: Annotated[
        str, _option("--headroom", "Always left free.  [default: 512MiB on a real card, 0 on the virtual GPU]")
    ] = "",
    sim_vram: Annotated[str, _option("--sim-vram", "Memory of the virtual GPU.")] = _DEFAULTS["sim_vram"],
    sim_link: Annotated[str, _option("--sim-link", "Its link to the host in GB/s; 0: as fast as memory.")] = _DEFAULTS[
        "sim_link"
    ],
    sim_set: Annotated[
        list[str] | None, _option("--sim-set", "NAME=NUMBER, a field of xlm_sim_config; modelled=1 for modelled time.")
    ] = None,
    ctx: Annotated[int, _option("--ctx", "Tokens of context for each session.", "--context")] = _DEFAULTS["ctx"],
    sessions: Annotated[int, _option("--sessions", "Conversations kept in the model's cache at once.")] = _DEFAULTS[
        "sessions"
    ],
    ubatch: Annotated[
        int, _option("--ubatch", "Tokens of one prefill step: more is faster, fewer reacts sooner.")
    ] = _DEFAULTS["ubatch"],
    threads: Annotated[int, _option("--threads", "CPU threads.  [0: physical cores]")] = _DEFAULTS["threads"],
    kv_type: Annotated[str, _option("--kv-type", "f16 or q8_0.")] = _DEFAULTS["kv_type"],
    chat_template: Annotated[str, _option("--chat-template", "Jinja file, instead of the model's own.")] = "",
    require_gpu: Annotated[
        bool, _option("--require-gpu", "End with an error rather than run on the virtual GPU or the CPU alone.")
    ] = _DEFAULTS["require_gpu"],
    ready_file: Annotated[
        str, _option("--ready-file", "JSON file written once the model is loaded or has failed.")
    ] = "",
    log_level: Annotated[str, _option("--log-level", "debug, info, warning or error.")] = _DEFAULTS["log_level"],
    log_file: Annotated[str, _option("--log-file", "Log there, not to standard error.")] = "",
    json_logs: Annotated[bool, _option("--json-logs", "JSON lines also on a terminal.")] = _DEFAULTS["json_logs"],
    curve: Annotated[bool, _option("--curve", "Encrypt a tcp endpoint; keys are made at the first use.")] = _DEFAULTS[
        "curve"
    ],
    heartbeat_ms: Annotated[
        float, _option("--heartbeat-ms", "A client's lease ends after three missed heartbeats.")
    ] = _DEFAULTS["heartbeat_ms"],
    pace_min_duty: Annotated[
        float, _option("--pace-min-duty", "The share of time generation keeps while a game's frames are late.")
    ] = _DEFAULTS["pace_min_duty"],
    max_clients: Annotated[int, _option("--max-clients", "Connections at once.")] = _DEFAULTS["max_clients"],
    mmproj: Annotated[
        str, _option("--mmproj", "Projector (GGUF) that belongs to the model: it can see images then.")
    ] = "",
    image_max: Annotated[str, _option("--image-max", "Largest image a client may upload.")] = _DEFAULTS["image_max"],
    images_per_say: Annotated[int, _option("--images-per-say", "Images in one turn.")] = _DEFAULTS["images_per_say"],
    image_store: Annotated[str, _option("--image-store", "Images kept for one client.")] = _DEFAULTS["image_store"],
    image_store_all: Annotated[str, _option("--image-store-all", "Images kept for all clients.")] = _DEFAULTS[
        "image_store_all"
    ],
    engine_command: Annotated[str, _option("--engine-command", "", hidden=True)] = "",
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    given = {name: value for name, value in locals().items() if name != "version"}
    given["sim_set"] = tuple(sim_set or ())
    raise typer.Exit(serve(Options(**given)))


def serve(options: Options) -> int:
    """Runs a broker until it is stopped; the exit code. Errors are printed as one line and a hint."""
    try:
        return _serve(build(options))
    except XlmError as error:
        report(error)
        return exit_code(error)


def _serve(config: Config) -> int:
    from xlm_broker.ready import ReadyFile

    ReadyFile(config.ready_file, "").clear_stale()  # before whoever started us can take it for ours
    from xlm_broker import telemetry  # these take a while to import, and wrong options should be told at once
    from xlm_broker.driver import Driver

    telemetry.configure(config.log)
    return Driver(config).run()


def report(error: XlmError) -> None:
    """For people, on standard error."""
    typer.echo(f"xlm-broker: {error.message} [{error.code}]", err=True)
    if error.hint:
        typer.echo(f"  hint: {to_type(error.hint)}", err=True)


def exit_code(error: XlmError) -> int:
    match error:
        case EndpointError():
            return EXIT_ENDPOINT
        case ModelError():
            return EXIT_MODEL
        case DeviceError():
            return EXIT_DEVICE
        case _:
            return EXIT_USAGE if error.fault == "caller" else EXIT_INTERNAL


def main() -> None:
    """Entry point of ``xlm-broker``."""
    _open_missing_streams()
    with output_or_one_line():
        app(prog_name="xlm-broker")


def _open_missing_streams() -> None:
    """Whoever starts a service may close all it has: what is opened next would get those numbers, and stray lines."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number
        setattr(sys, name, os.fdopen(opened, mode, closefd=opened > number))


if __name__ == "__main__":
    main()
