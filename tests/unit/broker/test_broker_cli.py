"""The command line: help that teaches, one readable line an error, exit codes as documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xlm_broker import broker_version
from xlm_broker.cli import broker as command
from xlm_broker.config import Options

GOOD = ["--model", "m.gguf", "--device", "sim", "--endpoint", "ipc:///run/xlm-test/b.sock"]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    seen: list[Options] = []

    def serve(options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(command, "serve", serve)
    return seen


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(command.app, list(arguments), env=environment)


def test_help_names_every_option_and_gives_examples() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in Options.__slots__:
        if name != "engine_command":
            assert "--" + name.replace("_", "-") in result.output
    for word in ("Examples:", "xlm-broker --model demo", "Exit codes:", "XLM_SIM_VRAM"):
        assert word in result.output


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output.strip()) == (0, f"xlm-broker {broker_version()}")


def test_defaults_are_those_of_options(served: list[Options]) -> None:
    assert run("--model", "m").exit_code == 0
    assert served == [Options(model="m")]


def test_every_option_arrives(served: list[Options]) -> None:
    flags = {
        "--model": "m", "--device": "vulkan", "--endpoint": "tcp://127.0.0.1:1", "--budget": "1", "--budget-idle": "2",
        "--budget-max": "3", "--headroom": "4", "--sim-vram": "5", "--sim-link": "6", "--ctx": "7", "--sessions": "8",
        "--ubatch": "9", "--threads": "10", "--kv-type": "q8_0", "--chat-template": "t", "--ready-file": "r",
        "--log-level": "debug", "--log-file": "l", "--heartbeat-ms": "11", "--max-clients": "12",
    }  # fmt: skip
    switches = ["--budget-from-game", "--require-gpu", "--json-logs", "--curve"]
    repeated = ["--sim-set", "modelled=1", "--sim-set", "a=2"]
    words = [word for pair in flags.items() for word in pair]
    assert run(*words, *switches, *repeated).exit_code == 0
    assert served == [
        Options(
            model="m",
            device="vulkan",
            endpoint="tcp://127.0.0.1:1",
            budget="1",
            budget_from_game=True,
            budget_idle="2",
            budget_max="3",
            headroom="4",
            sim_vram="5",
            sim_link="6",
            sim_set=("modelled=1", "a=2"),
            ctx=7,
            sessions=8,
            ubatch=9,
            threads=10,
            kv_type="q8_0",
            chat_template="t",
            require_gpu=True,
            ready_file="r",
            log_level="debug",
            log_file="l",
            json_logs=True,
            curve=True,
            heartbeat_ms=11.0,
            max_clients=12,
        )
    ]


def test_environment(served: list[Options]) -> None:
    assert run("--model", "m", XLM_SIM_VRAM="96MiB", XLM_ENDPOINT="tcp://127.0.0.1:2").exit_code == 0
    assert (served[0].sim_vram, served[0].endpoint) == ("96MiB", "tcp://127.0.0.1:2")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--budget", "lots"], command.EXIT_USAGE, "budget_invalid"),
        (["--ctx", "-4"], command.EXIT_USAGE, "--ctx"),
        (["--endpoint", "tcp://0.0.0.0:1"], command.EXIT_ENDPOINT, "endpoint_not_local"),
        (["--endpoint", "ipc:///" + "x" * 110], command.EXIT_ENDPOINT, "endpoint_too_long"),
        (["--endpoint", "ipc:///proc/nope/b.sock"], command.EXIT_ENDPOINT, "endpoint_forbidden"),
        (["--model", ""], command.EXIT_MODEL, "model_not_found"),
    ],
)
def test_errors_are_one_line_and_a_hint(arguments: list[str], code: int, word: str) -> None:
    result = run(*GOOD, *arguments)
    assert result.exit_code == code
    first, hint = result.stderr.strip().splitlines()[-2:]
    assert first.startswith("xlm-broker: ")
    assert word in first
    assert hint.startswith("  hint: ")
    assert "Traceback" not in result.output


def test_bad_option_syntax_is_a_usage_error() -> None:
    assert run("--model", "m", "--ctx", "many").exit_code == command.EXIT_USAGE
    assert run().exit_code == command.EXIT_USAGE


def test_runs_as_a_module_and_imports_no_gpu_library(tmp_path: Path) -> None:
    code = (
        "import sys, xlm_broker.driver, xlm_broker.cli.broker\n"
        "print([name for name in ('llama_cpp', 'xlm_native', 'cffi', 'torch') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    version = subprocess.run(
        [sys.executable, "-m", "xlm_broker.cli.broker", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("xlm-broker ")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of files there")
def test_too_few_files_for_any_client_are_told_at_once(tmp_path: Path) -> None:
    """With so few the broker would come up, say that it is ready, and shut the door before everybody."""
    words = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40));"
        "from xlm_broker.cli.broker import main; main()"
    )
    command = [sys.executable, "-c", words, "--model", "none.gguf", "--device", "cpu"]
    done = subprocess.run([*command, "--endpoint", f"ipc://{tmp_path}/b.sock"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "40 files" in done.stderr
    assert "ulimit" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no shell that closes streams")
def test_a_service_started_with_all_streams_closed_has_streams_that_go_nowhere() -> None:
    """Otherwise the first files opened would be 0, 1 and 2, and stray lines of any library would go into them."""
    words = (
        "import os, sys; from xlm_broker.cli import broker; from xlm_broker import telemetry;"
        "broker._open_missing_streams(); telemetry.configure(telemetry.LogConfig()); telemetry.logger().info('x');"
        "null = os.stat(os.devnull); os._exit(all(os.path.samestat(os.fstat(n), null) for n in range(3)) and 7)"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, words]
    assert subprocess.run(command).returncode == 7
