"""The process from start to end: device, model, loop. All but the link runs on this, the main thread."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import time
from collections.abc import Callable
from typing import Any, Final

import llama_cpp
import llama_cpp.llama_cpp as C
import psutil

from xlm._threads import answer_quickly, step_back
from xlm.errors import EngineError, ModelError, XlmError
from xlm.protocol import link
from xlm_engine import device as devices
from xlm_engine import gguf_check, logs, template_child, warmup
from xlm_engine.batcher import Batcher
from xlm_engine.channel import Channel, ImagesChanged, Message, Wake
from xlm_engine.experts import ExpertFigures
from xlm_engine.images.gate import Gate
from xlm_engine.images.source import Images
from xlm_engine.llama_log import LlamaLog
from xlm_engine.meter import Meter
from xlm_engine.pacer import Pacer
from xlm_engine.policy import Batching, Policy
from xlm_engine.profile.identity import identity_of_engine
from xlm_engine.prompt import Prompts
from xlm_engine.runtime import Runtime, vocabulary_error
from xlm_native import Device, build_info

EXIT_FAILED: Final = 3
_LONGEST_WAIT_S: Final = 0.5  # then a signal to stop is looked for
_PROCESS: Final = psutil.Process()


class Stopped(Exception):
    """Stop was received, or the process was told to end."""


def versions() -> dict[str, str]:
    """What Started reports. A native library that is missing is named; opening the device will say why."""
    found = {"llama_cpp_python": llama_cpp.__version__, "llama": C.llama_version().decode("utf-8", "replace")}
    try:
        found["xlm_native"] = build_info()
    except XlmError as error:
        found["xlm_native"] = f"missing: {error.message}"
    return found


class BudgetDevice:
    """Budget changes on the device, for the link thread."""

    def __init__(self, device: Device) -> None:
        self._device: Final = device

    def set_budget(self, request: link.SetEngineBudget, timeout_ns: int) -> link.Released:
        release = self._device.set_budget(request.budget_bytes, timeout_ns)
        return link.Released(
            seq=request.seq,
            budget_bytes=release.budget_bytes,
            used_bytes=release.used_bytes,
            device_used_bytes=release.device_used_bytes,
            released_bytes=release.released_bytes,
            release_ns=release.release_ns,
            completed=release.completed,
            cause=request.cause,
        )

    def hurry(self) -> None:
        with contextlib.suppress(XlmError):  # the step then rests as it would have
            self._device.set_pace(1.0)


class Engine:
    """``run`` returns the exit status. ``stop`` may be called from a signal handler."""

    def __init__(self, endpoint: str, parent_pid: int) -> None:
        answer_quickly()  # inherited by the threads of the link
        self._meter: Final = Meter()
        self._pacer: Final = Pacer(self._rested_ns)
        self._log: Final = LlamaLog()
        self._device: Device | None = None
        self._experts: ExpertFigures | None = None
        self._runtime: Runtime | None = None
        self._stopping = False
        self._backlog: list[Message] = []
        self._channel: Final = Channel(endpoint, parent_pid, self._stats, _exit_at_once)
        self._paced = False  # the last step was
        self._images: Final = Images(lambda: self._channel.inbox.put(ImagesChanged()))
        self._channel.attach_images(self._images)

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> int:
        self._log.install()
        self._channel.start()
        step_back()  # from here on this thread computes, and so do those that llama.cpp starts
        self._channel.send(link.Started(pid=os.getpid(), versions=versions()))
        try:
            self._serve(self._load(self._await_start()))
        except Stopped:
            return 0
        except XlmError as error:
            logs.logger().error("cannot go on", code=error.code, error=error.message)
            self._channel.send(link.Failed(code=error.code, message=error.message, hint=error.hint))
            return EXIT_FAILED
        finally:
            self._close()
        return 0

    def _close(self) -> None:
        self._channel.close()
        self._images.close()
        if self._runtime is not None:
            self._runtime.close()
        if self._device is not None:
            self._device.close()

    # -- messages

    def _next_message(self, timeout_s: float | None) -> Message | None:
        """The next one; None after ``timeout_s``. Stopped when it is time to end."""
        self._meter.steps += 1
        if self._stopping:
            raise Stopped
        if timeout_s:
            self._channel.deliver()
        try:
            message = self._channel.inbox.get(timeout=timeout_s) if timeout_s else self._channel.inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(message, link.Stop):
            raise Stopped
        return message

    def _await_start(self) -> link.Start:
        while True:
            message = self._next_message(0.2)
            if isinstance(message, link.Start):
                return message
            if message is not None:
                self._backlog.append(message)

    # -- loading

    def _progress(self, stage: str) -> Callable[[float], bool]:
        """A progress callback that sends at most every hundredth; False (stop loading) once told to end."""
        last = -1.0

        def report(fraction: float) -> bool:
            nonlocal last
            self._meter.steps += 1
            if fraction - last >= 0.01 or fraction >= 1.0:
                last = fraction
                self._channel.send(link.Progress(stage=stage, fraction=fraction))
            return not self._stop_wanted()

        return report

    def _stop_wanted(self) -> bool:
        """Looks for Stop without losing other messages."""
        try:
            while True:
                message = self._channel.inbox.get_nowait()
                self._stopping |= isinstance(message, link.Stop)
                self._backlog.append(message)
        except queue.Empty:
            return self._stopping

    def _load(self, start: link.Start) -> Batcher:
        began = time.perf_counter()
        config = start.model
        _check_config(config)
        self._check_file(config)
        n_threads = devices.n_threads_of(config.n_threads)
        self._channel.send(link.Progress(stage="device"))
        self._device = devices.open_device(start.device, start.budget_bytes, n_threads)
        self._channel.attach(BudgetDevice(self._device))
        runtime = self._load_model(self._device, config, n_threads)
        if runtime.vision is not None and start.device.kind == "vulkan":
            logs.logger().warning("images are encoded on the CPU: on Vulkan devices that is not proven yet")
        prompts = make_prompts(runtime, config)
        scratch = warmup.measure_scratch(runtime, lambda fraction: _discard(self._progress("warmup")(fraction)))
        self._channel.send(self._loaded(runtime, start, scratch, began))
        policy = Policy(batching_for(start.device), config.n_ubatch)
        batcher = Batcher(runtime, prompts, policy, self._meter, self._channel.put, self._channel.deliver)
        self._channel.attach_interrupt(batcher.interrupt)
        return batcher

    def _check_file(self, config: link.ModelConfig) -> None:
        """A file without a tokenizer may be of an unknown architecture altogether: llama.cpp is asked."""
        try:
            gguf_check.check_model(config.path, config.n_ctx * config.n_sessions, config.kv_type)
        except ModelError as error:
            if error.code == "model_missing_tokenizer":
                raise vocabulary_error(config.path, self._log) or error from None
            raise

    def _load_model(self, device: Device, config: link.ModelConfig, n_threads: int) -> Runtime:
        try:
            self._runtime = Runtime(device, config, n_threads, self._log, self._progress("load"))
        except XlmError:
            if self._stopping:
                raise Stopped from None
            raise
        return self._runtime

    def _loaded(self, runtime: Runtime, start: link.Start, scratch: dict[int, int], began: float) -> link.Loaded:
        assert self._device is not None
        self._experts = ExpertFigures(self._device)
        inner = self._device.description() if start.device.kind != "none" else ""
        device = devices.facts(
            self._device, start.device, n_threads=devices.n_threads_of(start.model.n_threads),
            identity=identity_of_engine(start.device, inner),
        )  # fmt: skip
        return link.Loaded(
            model=runtime.model_facts(scratch),
            device=device,
            host_rss_bytes=_PROCESS.memory_info().rss,
            load_ms=(time.perf_counter() - began) * 1e3,
        )

    # -- serving

    def _serve(self, batcher: Batcher) -> None:
        gate = Gate(self._images, batcher, self._channel.send)
        for early in self._backlog:
            self._handle(batcher, gate, early)
        self._backlog.clear()
        gc.freeze()  # what was loaded is never garbage: a collection, which the link has to wait for, stays short
        while True:
            self._channel.busy = batcher.has_work or gate.has_work
            message = self._next_message(self._patience_s(batcher))
            while message is not None:
                self._handle(batcher, gate, message)
                message = self._next_message(None)
            if not batcher.has_work:
                self._channel.deliver()
                if batcher.settle():
                    self._channel.report()
            elif not self._pacer.wait_ns():
                self._pacer.step(lambda: self._step(batcher))

    def _step(self, batcher: Batcher) -> None:
        """One step, which rests at its borders too; not where a message came in since the inbox was read."""
        paced, was_paced = self._pacer.duty < 1.0, self._paced
        if self._device is not None and (paced or was_paced):
            self._device.set_pace(self._pacer.duty, self._pacer.max_gap_ns)
            if not self._channel.inbox.empty():
                self._device.set_pace(1.0)
        self._paced = paced
        batcher.step()

    def _rested_ns(self) -> int:
        """Within steps, since the engine started."""
        return 0 if self._device is None else self._device.stats()["ns_paced"]

    def _patience_s(self, batcher: Batcher) -> float:
        """How long there is nothing to do but to wait for messages: idle, or between two paced steps."""
        if batcher.has_work:
            wait_ns = self._pacer.wait_ns()
            if wait_ns:
                batcher.hand_over()
            return min(_LONGEST_WAIT_S, wait_ns / 1e9)
        return 0.0 if batcher.has_uploads else _LONGEST_WAIT_S

    def _handle(self, batcher: Batcher, gate: Gate, message: Message) -> None:
        match message:
            case link.Generate():
                gate.generate(message)
            case ImagesChanged():
                gate.pump()
            case link.CancelGeneration():
                if not gate.cancel(message.gen_id):
                    batcher.cancel(message.gen_id)
            case link.SetSchedule():
                batcher.set_schedule(message.schedule)
            case link.DropSession():
                gate.drop_session(message.session_id)
                batcher.drop_session(message.session_id)
            case link.SetPace():
                self._pacer.set(message.duty, message.max_gap_ns)
            case link.Probe():
                batcher.recover()
                self._channel.send(self._stats())
            case Wake():
                batcher.budget_changed()
            case _:
                logs.logger().warning("unexpected message", type=type(message).__name__)

    # -- stats (also called on the link thread)

    def _stats(self) -> link.Stats:
        meter = self._meter
        values: dict[str, Any] = self._device_stats()
        return link.Stats(
            tokens_generated=meter.generated,
            tokens_prefilled=meter.prefilled,
            tokens_per_s=meter.tokens_per_s(),
            host_rss_bytes=_PROCESS.memory_info().rss,
            n_active=meter.n_active,
            steps=meter.steps + self._segments(values),  # encoding an image takes many segments and one step
            settled=meter.settled,
            **values,
        )

    @staticmethod
    def _segments(values: dict[str, Any]) -> int:
        detail = values.get("detail", {})
        return int(detail.get("n_segments_cpu", 0)) + int(detail.get("n_segments_device", 0))

    def _device_stats(self) -> dict[str, Any]:
        device = self._device
        if device is None:
            return {}
        try:
            memory, stats = device.memory(), device.stats()
            experts = self._experts.read() if self._experts is not None else []
        except XlmError:
            return {}
        return {
            "budget_bytes": memory.budget_bytes,
            "used_bytes": memory.used_bytes,
            "resident_bytes": memory.resident_bytes,
            "kv_bytes": memory.kv_bytes,
            "ring_bytes": memory.ring_bytes,
            "scratch_bytes": memory.scratch_bytes,
            "device_used_bytes": memory.device_used_bytes,
            "device_total_bytes": memory.device_total_bytes,
            "over_budget_events": memory.over_budget_events,
            "schedule_id": stats["schedule_id"],
            "bytes_streamed": stats["bytes_streamed"],
            "device_lost": bool(stats["device_lost"]),
            "experts": experts,
            "detail": {**stats, "peak_used_bytes": memory.peak_used_bytes, **self._pace(), **self._vision()},
        }

    def _pace(self) -> dict[str, float]:
        """The duty in force, and how long steps were held back for it since the engine started."""
        return {"duty": self._pacer.duty, "paced_ns": self._pacer.idle_ns}

    def _vision(self) -> dict[str, Any]:
        """What the tower did since the engine started; empty without one."""
        runtime = self._runtime
        return runtime.vision.status() if runtime is not None and runtime.vision is not None else {}


def _discard(_value: object) -> None:
    """For callbacks that return nothing."""


def _exit_at_once() -> None:
    """The broker is gone: nobody is left to be told, and the memory is the system's again."""
    os._exit(0)


def _check_config(config: link.ModelConfig) -> None:
    if min(config.n_ctx, config.n_sessions, config.n_ubatch) < 1 or config.n_threads < 0:
        raise EngineError("n_ctx, n_sessions and n_ubatch must be at least 1", code="internal")


def batching_for(config: link.DeviceConfig) -> Batching:
    """``exact`` where bits can be the same in every placement; XLM_ENGINE_BATCHING overrides."""
    override = os.environ.get("XLM_ENGINE_BATCHING", "")
    if override in ("exact", "throughput"):
        return "exact" if override == "exact" else "throughput"
    return "exact" if config.kind in ("none", "sim") else "throughput"


def make_prompts(runtime: Runtime, config: link.ModelConfig) -> Prompts:
    """The model's chat format. GenerationError ``template_invalid`` names what is wrong with a template."""
    vocab = runtime.vocab
    bos = C.llama_vocab_bos(vocab)
    source = config.chat_template or runtime.meta("tokenizer.chat_template")
    if not source:
        logs.logger().warning("the model has no chat template: ChatML is used")
    template = template_child.take_apart(
        source, runtime.special_text(bos), runtime.special_text(C.llama_vocab_eos(vocab))
    )
    always = bos if C.llama_vocab_get_add_bos(vocab) and bos >= 0 else None
    return Prompts(template, runtime.tokenize, always)
