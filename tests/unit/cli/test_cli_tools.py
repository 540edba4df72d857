"""The ``xlm`` command as a user runs it, against the SDK's fake broker."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

import xlm
from xlm import _fake_status
from xlm.protocol import messages
from xlm.testing import FakeBroker
from xlm_broker import broker_version
from xlm_broker.cli import status as status_command
from xlm_broker.cli import tools
from xlm_broker.cli.chat import parse_budget
from xlm_broker.cli.common import interruption_told
from xlm_broker.cli.status import flat, shown, summary


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer="Aye, I can. 🔨") as fake:
        yield fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """``run("status", "--json")`` → (exit code, stdout, stderr), through the real entry point."""

    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["xlm", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            tools.main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return call


def test_version(run) -> None:  # type: ignore[no-untyped-def]
    assert run("--version") == (0, f"xlm {broker_version()}\n", "")


@pytest.mark.parametrize("command", ["demo", "chat", "status", "doctor", "profile", "plan"])
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(tools.app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"xlm {command}" in result.output


def test_the_list_of_commands_is_not_cut_off_at_80_columns() -> None:
    result = CliRunner().invoke(tools.app, ["--help"], env={"COLUMNS": "80"})
    commands = result.output.partition("Commands:")[2].splitlines()
    assert len([line for line in commands if line.strip()]) == 7
    assert all(line.endswith(".") and "..." not in line for line in commands if line.strip())


def test_a_wrong_option_is_a_usage_error(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("demo", "--seconds", "1")
    assert code == 2
    assert "seconds" in err


def test_chat_once_prints_the_answer_and_nothing_else(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("chat", "-e", broker.endpoint, "--once", "Can you?", "--system", "Greta", "--temperature", "0")
    assert (code, out, err) == (0, "Aye, I can. 🔨\n", "")
    assert broker.wait_for(messages.OpenSession).system == "Greta"
    said = broker.wait_for(messages.Say)
    assert (said.text, said.sampling.temperature, said.max_tokens) == ("Can you?", 0.0, 256)


def test_chat_shows_images_with_the_first_message(run, broker: FakeBroker, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    files = [tmp_path / name for name in ("a.png", "b.jpg")]
    for file in files:
        file.write_bytes(file.name.encode())
    shown = ["--image", str(files[0]), "-i", str(files[1])]
    assert run("chat", "-e", broker.endpoint, *shown, "--once", "What is it?")[0] == 0
    assert [broker.images[key] for key in broker.wait_for(messages.Say).images] == [b"a.png", b"b.jpg"]
    run("chat", "-e", broker.endpoint, stdin=f"Hello\n/image {files[0]}\nLook\nAnd?\n/image {tmp_path}/none\n")
    says = [request for request in broker.requests if isinstance(request, messages.Say)][1:]
    assert [len(say.images) for say in says] == [0, 1, 0]


def test_chat_with_an_image_that_is_not_there_names_it(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("chat", "-e", broker.endpoint, "--image", "/no/such/frame.png", "--once", "Hi")
    assert code != 0
    assert "/no/such/frame.png" in err
    assert "Traceback" not in err


def test_chat_takes_lines_and_commands(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    lines = "Hello\n\n/budget 96MiB\n/nonsense\n/new\nAgain\n/quit\nnever said\n"
    code, out, err = run("chat", "-e", broker.endpoint, stdin=lines)
    assert (code, err) == (0, "")
    assert out.count("Aye, I can.") == 2
    assert "96MiB granted" in out
    assert "/nonsense is no command" in out
    assert [one.text for one in broker.requests if isinstance(one, messages.Say)] == ["Hello", "Again"]
    assert len([one for one in broker.requests if isinstance(one, messages.OpenSession)]) == 2


def test_chat_goes_on_after_a_mistake(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    broker.fail_next("say", "context_overflow", "the conversation is too long")
    code, out, err = run("chat", "-e", broker.endpoint, stdin="Hello\n/budget lots\nAgain\n")
    assert code == 0
    assert "the conversation is too long" in err
    assert "/new begins a new conversation" in err
    assert "'lots' is not a size" in err
    assert "Aye, I can." in out


def test_chat_caps_its_budget(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    assert run("chat", "-e", broker.endpoint, "--budget", "64MiB", "--once", "Hi")[0] == 0
    assert broker.wait_for(messages.SetBudget).cap_bytes == 64 << 20


def test_an_engine_that_failed_ends_the_chat(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    broker.fail_next("say", "engine_failed", "it died five times")
    code, _, err = run("chat", "-e", broker.endpoint, "--once", "Hi")
    assert code == 69
    assert err.startswith("error: it died five times\nhint:  ")


def test_status_json_has_every_part(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("status", "-e", broker.endpoint, "--json")
    answer = json.loads(out)
    assert code == 0
    assert set(answer) == {f for f in messages.Status.__struct_fields__ if f not in ("id", "cause")}
    assert answer["engine"]["state"] == "ready"


def test_status_fits_one_screen(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    with contextlib.ExitStack() as games:
        for number in range(12):
            client = games.enter_context(xlm.connect(broker.endpoint, name=f"game {number}"))
            games.enter_context(client.open_session())
        code, out, _ = run("status", "-e", broker.endpoint)
        status = games.enter_context(xlm.connect(broker.endpoint, name="looks")).status()
    assert code == 0
    screen = Console(width=80, force_terminal=True, highlight=False)
    with screen.capture() as captured:
        screen.print(status_command.brief(status))
    assert len(captured.get().splitlines()) <= 24
    assert all(line == line.rstrip() for line in out.splitlines())  # without a terminal
    assert any(len(line) > 80 for line in out.splitlines())
    for words in ("budget ", "memory ", "placement ", "game 0: no cap", "of game 4: idle", "... and 8 more", "--all"):
        assert words in out
    assert "warning" not in out


def test_status_with_all_names_parts_and_sizes(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("status", "--endpoint", broker.endpoint, "--all")
    assert code == 0
    for words in ("device", "total_bytes", "256MiB", "client 1", "xlm status"):
        assert words in out


@pytest.mark.parametrize("shown", [status_command.page, status_command.brief])
def test_a_games_name_is_neither_markup_nor_a_command_to_the_terminal(shown: Any) -> None:
    said = Console(width=200, force_terminal=True, highlight=False)
    with said.capture() as captured:
        said.print(shown({"clients": [{"name": "My [/x] [red]Game\x1b]0;owned\x07", "sessions": 1}]}))
    assert "My [/x] [red]Game\N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}" in captured.get()
    assert "\x1b]" not in captured.get()


def test_a_wait_without_end_is_a_usage_error(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("status", "--wait", "inf")
    assert code == 2
    assert "--wait" in err


def test_status_that_is_watched_by_a_program_comes_page_by_page(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([None])
    monkeypatch.setattr(status_command, "time", SimpleNamespace(sleep=lambda _: next(looks)))
    with pytest.raises(StopIteration):
        status_command.status(endpoint=broker.endpoint, watch=True)
    assert capsys.readouterr().out.count("--json: for programs") == 2


def test_no_broker_is_one_line_and_a_hint(run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("status", "-e", f"ipc://{tmp_path}/nobody.sock", "--wait", "0.2")
    assert (code, out) == (69, "")
    assert err.splitlines()[0].startswith("error: no broker answers at ipc://")
    assert err.splitlines()[1].startswith("hint: ")
    assert len(err.splitlines()) == 2


def test_an_endpoint_elsewhere_is_refused(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("status", "-e", "tcp://192.0.2.1:5000")
    assert code == 3
    assert "this machine only" in err


def test_chat_with_a_model_and_an_endpoint_is_a_usage_error(run) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run("chat", "--model", "demo", "-e", "ipc:///tmp/x.sock")
    assert code == 2
    assert "not both" in err


def test_chat_without_a_broker_names_both_ways_to_get_one(run, broker: FakeBroker, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("xlm._commands.command", lambda name: name)
    broker.fail_next("open_session", "not_ready", "no broker answers yet")
    code, _, err = run("chat", "-e", broker.endpoint, "--once", "Hi")
    assert code == 69
    hint = err.splitlines()[1]
    assert hint.endswith("`xlm-broker --model demo --budget-from-game`, or `xlm chat --model demo`")


@pytest.mark.parametrize("option", [("--model",), ("--model", "demo", "--mmproj"), ("--image",)])
def test_chat_tells_of_a_file_that_is_not_there_before_it_waits(run, tmp_path, monkeypatch, option) -> None:  # type: ignore[no-untyped-def]
    for name in ("xlm.connect", "xlm_broker.demo.process.PrivateBroker"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("waits for a broker"))
    code, out, err = run("chat", *option, str(tmp_path / "nowhere.gguf"), "--once", "Hi")
    assert code != 0
    assert out == ""
    assert "nowhere.gguf" in err.splitlines()[0]


@pytest.mark.parametrize("limit", ["idle", "fixed"])
def test_chat_says_why_it_has_no_memory_of_the_device(run, broker: FakeBroker, monkeypatch, limit: str) -> None:  # type: ignore[no-untyped-def]
    whole = _fake_status.status
    warning = {"code": "budget_infeasible", "message": "no client has said yet", "hint": "a game calls set_budget"}

    def status(now: _fake_status.Standing) -> messages.Status:
        made = whole(now)
        return replace(made, budget={**made.budget, "warning": warning, "limited_by": limit})

    code, out, err = run("chat", "-e", broker.endpoint, "--once", "Hi")
    assert (code, err) == (0, "")
    monkeypatch.setattr(_fake_status, "status", status)
    code, again, err = run("chat", "-e", broker.endpoint, "--once", "Hi")
    assert (code, again) == (0, out)
    assert err.startswith("note: no client has said yet")
    assert ("/budget all" in err) is (limit == "idle")
    assert "a game calls set_budget" in err


def test_chat_status_is_the_first_line_of_xlm_status(run, broker: FakeBroker) -> None:  # type: ignore[no-untyped-def]
    _, page, _ = run("status", "-e", broker.endpoint)
    _, said, _ = run("chat", "-e", broker.endpoint, stdin="/status\n")
    (line,) = said.splitlines()
    assert line.startswith("ready; uses ")
    assert " ".join(page.split()).startswith(line)


def test_the_summary_of_a_status() -> None:
    budget = {"used_bytes": 3 << 19, "effective_bytes": 96 << 20, "limited_by": "cap"}
    device = {"kind": "sim", "total_bytes": 1 << 28}
    model = {"name": "Odd Name 8k", "path": "/models/greta.gguf"}
    full = {
        "engine": {"state": "ready", "model": model},
        "budget": budget,
        "device": device,
        "throughput": {"tokens_per_s": 12.34},
    }
    words = "ready; uses 1.5MiB of a budget of 96MiB (limited by cap); on sim, 256MiB; greta.gguf; 12.3 tokens/s"
    assert summary(full) == words
    assert summary({}) == "no engine; uses ? of a budget of ?"


def test_ctrl_c_says_what_it_left_behind_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), interruption_told("stopped; nothing written"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "\nstopped; nothing written\n"


def test_values_for_people() -> None:
    assert flat({"a": {"b_bytes": 3 << 20, "c": {"d": None}}, "e": [1, 2], "f": "", "g": [], "h": 0}) == [
        ("a.b_bytes", "3MiB"),
        ("e", "1, 2"),
        ("h", "0"),
    ]
    tiers = [{"max_tokens": 1, "n_cpu": 2, "n_resident": 60}, {"max_tokens": 64, "n_cpu": 0, "n_resident": 62}]
    assert flat({"tiers": tiers}) == [
        ("tiers.1", "max_tokens 1, cpu 2, resident 60"),
        ("tiers.2", "max_tokens 64, cpu 0, resident 62"),
    ]
    assert [shown("x_bytes", value) for value in (0, 1 << 10, 3 << 29)] == ["0B", "1KiB", "1.5GiB"]
    assert [shown("x", value) for value in (True, False, 1.234, "s")] == ["yes", "no", "1.23", "s"]
    assert [parse_budget(text) for text in ("all", " 96MiB ", "0")] == [None, "96MiB", "0"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
@pytest.mark.parametrize("name", ["xlm", "xlm_broker"])
def test_ctrl_c_while_a_command_is_still_being_imported_says_nothing(name: str) -> None:
    """The imports take a second. Here one of them is where the key is pressed."""
    words = (
        "import os, signal, sys, builtins; from xlm_broker.cli import entry; real = builtins.__import__\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored\n"
        "def importing(what, *more):\n"
        "    if what == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(what, *more)\n"
        f"builtins.__import__ = importing; sys.argv = ['x', '--help']; entry.{name}()"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
