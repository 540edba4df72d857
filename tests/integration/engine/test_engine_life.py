"""The engine's life: start, failure to start, death, and the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.engine.harness import engine_process
from tests.integration.engine.tiny_model import write_tiny_model
from tests.support.bad_models import BAD_MODELS
from tests.support.model import model_path, plain_llama, smollm_prompt
from xlm.protocol import link


def test_start_tells_progress_and_facts(tiny_model: Path) -> None:
    with engine_process() as engine:
        started = engine.wait_for(link.Started)
        assert started.pid == engine.process.pid
        loaded = engine.load(tiny_model)
        stages = [m.stage for m in engine.other if isinstance(m, link.Progress)]
        assert list(dict.fromkeys(stages)) == ["device", "load", "warmup"]
        assert (loaded.model.architecture, loaded.model.n_layer, loaded.model.n_ubatch) == ("llama", 2, 32)
        assert sorted(loaded.model.scratch_bytes) == [1, 4, 16, 32]
        assert loaded.device.kind == "none"
        assert loaded.model.file_bytes == tiny_model.stat().st_size


@pytest.mark.parametrize("code", sorted(BAD_MODELS))
def test_bad_model_files_fail_typed(tmp_path: Path, code: str) -> None:
    with engine_process() as engine:
        engine.start(BAD_MODELS[code](tmp_path))
        failed = engine.wait_for(link.Failed)
        assert failed.code == code
        assert failed.message
        assert engine.process.wait(timeout=600) == 3


@pytest.mark.parametrize(
    ("device", "code"),
    [
        (link.DeviceConfig(kind="cuda", library="/nowhere/libggml-cuda.so"), "device_not_found"),
        (link.DeviceConfig(kind="vulkan", library="/nowhere/libggml-vulkan.so"), "device_not_found"),
    ],
)
def test_missing_device_fails_typed(tiny_model: Path, device: link.DeviceConfig, code: str) -> None:
    with engine_process() as engine:
        engine.start(tiny_model, device)
        assert engine.wait_for(link.Failed).code == code


def test_missing_native_library_fails_typed(tiny_model: Path, tmp_path: Path) -> None:
    with engine_process({"XLM_NATIVE_LIB_DIR": str(tmp_path)}) as engine:
        engine.start(tiny_model)
        failed = engine.wait_for(link.Failed)
        assert failed.code == "device_not_found"
        assert "ggml-xlm" in failed.message


def test_bad_template_fails_typed(tiny_model: Path) -> None:
    with engine_process() as engine:
        engine.start(tiny_model, chat_template="{{ ''.__class__.__base__.__subclasses__() }}")
        assert engine.wait_for(link.Failed).code == "template_invalid"


def test_model_without_template_speaks_chatml(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "mütter 模型.gguf", chat_template="")
    with engine_process() as engine:
        engine.load(path)
        answer = engine.say("Hi")
        with plain_llama(path, n_ctx=512, n_ubatch=32, n_threads=1) as llama:
            assert llama.greedy(smollm_prompt(llama, "You are a test.", "Hi"), 24) == answer.token_ids


def test_killed_engine_is_replaced_and_the_conversation_goes_on(tiny_model: Path) -> None:
    with engine_process() as engine:
        engine.load(tiny_model)
        first = engine.say("One.")
        second = engine.say("Two.", context=first.done.context_delta)
        engine.process.send_signal(signal.SIGKILL)
        assert engine.process.wait() == -signal.SIGKILL
    with engine_process() as engine:
        engine.load(tiny_model)
        delivered = second.token_ids[:10]
        rest = engine.say("Two.", context=first.done.context_delta, replay=delivered)
        assert delivered + rest.token_ids == second.token_ids
        assert rest.done.context_delta == second.done.context_delta


@pytest.mark.parametrize("how", ["stop", "sigterm"])
def test_it_ends_when_told(tiny_model: Path, how: str) -> None:
    with engine_process() as engine:
        engine.load(tiny_model)
        gen_id = engine.generate("Talk.", max_tokens=400)
        engine.wait_for(link.Piece, lambda piece: piece.gen_id == gen_id)
        if how == "stop":
            engine.send(link.Stop())
        else:
            engine.process.terminate()
        assert engine.process.wait(timeout=600) == 0
        assert engine.process.stdout is not None
        assert engine.process.stdout.read() == b""


def test_stop_ends_a_load(tmp_path: Path) -> None:
    with engine_process() as engine:
        engine.start(model_path())
        engine.wait_for(link.Progress, lambda progress: progress.stage == "load")
        engine.send(link.Stop())
        assert engine.process.wait(timeout=600) == 0


PARENT = """
import os, subprocess, sys
command = [sys.executable, "-m", "xlm_engine", "--link", sys.argv[1], "--parent-pid", str(os.getpid())]
child = subprocess.Popen(command)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, f"ipc://{tmp_path}/link"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    child.wait(timeout=600)


def test_budget_before_the_device_is_answered_once_it_is_open(tiny_model: Path) -> None:
    with engine_process() as engine:
        engine.send(link.SetEngineBudget(seq=1, budget_bytes=0, cause="early"))
        engine.start(tiny_model)
        released = engine.wait_for(link.Released)
        assert (released.seq, released.completed, released.used_bytes, released.cause) == (1, True, 0, "early")
        engine.wait_for(link.Loaded)


def test_real_model_speaks_as_plain_llama(tmp_path: Path) -> None:
    with engine_process() as engine:
        engine.load(model_path(), n_ctx=1024, n_ubatch=64, n_threads=2)
        text = "What does a blacksmith do all day?"
        answer = engine.say(text, system="You are Greta, a blacksmith.", max_tokens=32)
        with plain_llama(n_ctx=1024) as llama:
            expected = llama.greedy(smollm_prompt(llama, "You are Greta, a blacksmith.", text), 32)
        assert answer.token_ids == expected
        assert answer.text.strip()


def test_sessions_share_steps_where_throughput_is_asked_for(tiny_model: Path) -> None:
    """As on real GPUs: more sessions than fit one step, prompts between, all come to their end."""
    with engine_process({"XLM_ENGINE_BATCHING": "throughput"}) as engine:
        engine.load(tiny_model, n_sessions=4, n_ubatch=8)
        ids = [engine.generate("Talk of the sea. " * (i + 1), f"s{i}", max_tokens=20) for i in range(6)]
        answers = [engine.result(gen_id) for gen_id in ids]
        assert [answer.done.usage.completion_tokens for answer in answers] == [20] * 6
        again = engine.say("And?", "s5", context=answers[5].done.context_delta)
        assert again.done.usage.cached_tokens > 0
