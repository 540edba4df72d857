"""``xlm chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer
from rich.console import Console

import xlm
from xlm.errors import BrokerError, Cancelled, ContextOverflow, ImageError, XlmError
from xlm_broker.cli.common import ended_like_ctrl_c, error_text
from xlm_broker.cli.status import summary

HELP = """\
/new              begin a new conversation
/budget SIZE      the model may use at most SIZE of the device (96MiB, 0, all)
/image FILE       show it with the next message (a model with a projector)
/status           what the broker holds
/help             this text
/quit             leave (or Ctrl-D); Ctrl-C stops an answer"""


def chat(
    endpoint: Annotated[str, typer.Option("--endpoint", "-e", help="Where the broker listens.")] = "",
    system: Annotated[str, typer.Option("--system", "-s", help="Who the model is.")] = "You are a helpful assistant.",
    once: Annotated[str | None, typer.Option("--once", help="Ask this, print the answer, leave.")] = None,
    image: Annotated[
        list[str] | None, typer.Option("--image", "-i", help="Show this file with the first message; may be repeated.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Start a private broker with this model (a GGUF file, or demo).")
    ] = "",
    mmproj: Annotated[str, typer.Option(help="With --model: its projector, for images.")] = "",
    device: Annotated[str, typer.Option(help="With --model: auto, cuda, vulkan, sim or cpu.")] = "auto",
    budget: Annotated[str, typer.Option(help="At most this much device memory, like 96MiB.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0, help="0: always the likeliest token.")] = 0.8,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="The same seed, the same answers.")] = None,
) -> None:
    """Talks to the model of a running broker, or of a private one that ends with the conversation.

    Examples:

      xlm chat --model demo

      xlm chat --once "What do you sell?" --system "You are Greta, a blacksmith."

      xlm chat --endpoint tcp://127.0.0.1:17861 --temperature 0

      xlm chat --image frame.png --once "What do you see?"
    """
    images = [read_image(file) for file in image or []]
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    with (
        ended_like_ctrl_c(),
        _endpoint(endpoint, model, device, mmproj) as where,
        contextlib.nullcontext() if model else _private_broker_hinted(),
        xlm.connect(where or None, name="xlm chat") as client,
    ):
        if budget:
            client.set_budget(parse_budget(budget))
        _tell_shortage(client.status().get("budget", {}))
        talk = Chat(client, system, options, images)
        talk.once(once) if once is not None else talk.loop()


@contextlib.contextmanager
def _private_broker_hinted() -> Iterator[None]:
    """Who has no broker running is told that this command can start one of its own."""
    try:
        yield
    except BrokerError as error:
        if error.code != "not_ready":
            raise
        raise BrokerError(error.message, code=error.code, hint=f"{error.hint}, or `xlm chat --model demo`") from error


@contextlib.contextmanager
def _endpoint(endpoint: str, model: str, device: str, mmproj: str) -> Iterator[str]:
    """The endpoint to talk to; with ``model`` that of a broker that lives as long as the context."""
    if mmproj and not model:
        raise typer.BadParameter("--mmproj belongs to --model; a running broker is started with its own --mmproj")
    if not model:
        yield endpoint
        return
    if endpoint:
        raise typer.BadParameter("give --endpoint (a running broker) or --model (a private one), not both")
    from xlm_broker.config import require_file
    from xlm_broker.demo.process import PrivateBroker

    require_file(model, mmproj)
    notes = Console(stderr=True, highlight=False)
    log = platformdirs.user_log_path("xlm") / "chat-broker.log"  # of the last chat: an error can be looked up later
    projector = ["--mmproj", mmproj] if mmproj else []
    with PrivateBroker(["--model", model, "--device", device, *projector], log) as broker:
        with notes.status("starting the broker ...") as spinner:
            broker.wait_until_loaded(lambda waited_s: spinner.update(f"loading the model ... {waited_s:.0f} s"))
        yield broker.endpoint


def _tell_shortage(budget: Mapping[str, Any]) -> None:
    """Why the CPU alone answers; where nobody has decided yet, this very program can."""
    if warning := budget.get("warning"):
        here = "/budget all, or --budget SIZE; else " if budget.get("limited_by") == "idle" else ""
        print(f"note: {warning['message']}\n  hint: {here}{warning['hint']}", file=sys.stderr)


def parse_budget(text: str) -> str | None:
    """What set_budget takes; "all" lifts the cap."""
    return None if text.strip().lower() == "all" else text.strip()


def read_image(file: str) -> bytes:
    """Raises ImageError (``image_unsupported``) that names the file and says why it cannot be read."""
    try:
        return Path(file).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{file}: {reason}", code="image_unsupported", hint="name an image file") from None


@dataclass
class Chat:
    """One conversation with a person. ``options`` go to ``say``; ``images`` are shown with the next message."""

    client: xlm.Client
    system: str
    options: dict[str, Any]
    images: list[bytes] = field(default_factory=list)

    def once(self, text: str) -> None:
        """One question, the answer on standard output."""
        with self.client.open_session(system=self.system) as session:
            for piece in session.say(text, images=self._shown(), **self.options):
                _write(piece)
        _write("\n")

    def _shown(self) -> list[bytes]:
        shown, self.images = self.images, []
        return shown

    def loop(self) -> None:
        """Asks and answers until the person leaves."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - line editing and history for input()
        if sys.stdin.isatty():
            print("Type a message; /help shows what else there is.")
        while self._conversation():
            print("A new conversation.")

    def _conversation(self) -> bool:
        """True: the person wants a new one."""
        with self.client.open_session(system=self.system) as session:
            for line in _lines():
                if line in ("/new", "/quit", "/exit"):
                    return line == "/new"
                self._line(session, line)
        return False

    def _line(self, session: Any, line: str) -> None:
        try:
            if line.startswith("/"):
                print(self._command(line))
            else:
                self._answer(session, line)
        except ContextOverflow as error:
            print(f"\n{error_text(error)}\n/new begins a new conversation.", file=sys.stderr)
        except XlmError as error:
            if not error.retryable and error.fault != "caller":
                raise
            print(f"\n{error_text(error)}", file=sys.stderr)

    def _answer(self, session: Any, text: str) -> None:
        reply = session.say(text, images=self._shown(), **self.options)
        try:
            for piece in reply:
                _write(piece)
        except KeyboardInterrupt:
            with contextlib.suppress(Cancelled):
                reply.cancel()
            _write(" [stopped]")
        _write("\n")

    def _command(self, line: str) -> str:
        name, _, value = line.partition(" ")
        if name == "/budget":
            lease = self.client.set_budget(parse_budget(value))
            granted, used = xlm.format_size(lease.granted_bytes), xlm.format_size(lease.used_bytes)
            return f"{granted} granted, {used} used, released in {lease.release_ms:.2f} ms"
        if name == "/image":
            self.images.append(read_image(value.strip()))
            return f"{len(self.images)} to show with the next message"
        if name == "/status":
            return summary(self.client.status())
        return HELP if name == "/help" else f"{name} is no command\n{HELP}"


def _lines() -> Iterator[str]:
    """What the person types, without empty lines, until the end of input. Ctrl-C at the prompt leaves."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            if prompt:
                print()
            return
        if line:
            yield line


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
