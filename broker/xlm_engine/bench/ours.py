"""Our side: the engine's own runtime on XLM0 over the virtual GPU, by schedules that the parent made."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec

from xlm.errors import EngineError
from xlm.protocol import link
from xlm_engine import device as engine_device
from xlm_engine.bench.sim import BenchSim
from xlm_engine.bench.steps import Steps
from xlm_engine.bench.wire import Request
from xlm_engine.llama_log import LlamaLog
from xlm_engine.runtime import Runtime
from xlm_engine.warmup import mask_bytes, measure_scratch
from xlm_native import Device, DeviceOptions

SETTLE_BYTES: Final = 1 << 40
TRACE_EVENTS: Final = 1 << 16
LENDING_STEPS: Final = 4  # of few tokens, after which all that can be lent to copies is (native backend/lending.hpp)


class OurSide:
    """One model and context at a time; the schedule and the budget change."""

    def __init__(self, request: Request) -> None:
        self.sim: Final = BenchSim(request)
        self._config: Final = link.DeviceConfig(kind="sim")
        self._threads: Final = request.n_threads
        self._device: Final = Device.open(
            DeviceOptions(inner="sim", inner_library=self.sim.path, n_threads=request.n_threads, budget_bytes=0)
        )
        self._log: Final = LlamaLog()
        self._log.install()
        self._runtime: Runtime | None = None
        self.steps: Steps | None = None
        self._scratch: Final[dict[tuple[str, int], tuple[int, dict[int, int]]]] = {}
        self._prepared: set[tuple[int, int]] = set()
        self._last_tokens = 0  # of the last step that was prepared

    def load(self, request: Request) -> dict[str, Any]:
        """The planner's facts of the model, as the engine reports them."""
        self.close_model()
        self.sim.free_of_charge()
        self._device.set_budget(0, 0)
        config = link.ModelConfig(
            path=request.path, n_ctx=request.n_ctx, n_sessions=1, n_ubatch=request.n_ubatch, n_threads=self._threads
        )
        self._runtime = Runtime(self._device, config, self._threads, self._log, lambda _share: True)
        facts = self._runtime.model_facts(self._scratch_bytes(request))
        self.steps = Steps(self._runtime._context, request.n_ubatch, self._device.begin_step, self._device.abort_step)
        return {
            "facts": msgspec.to_builtins(facts, builtin_types=()),
            "device": msgspec.to_builtins(engine_device.facts(self._device, self._config)),
        }

    def _scratch_bytes(self, request: Request) -> dict[int, int]:
        """Measured once a model: of another context only the mask differs."""
        assert self._runtime is not None
        key = (request.path, request.n_ubatch)
        if key not in self._scratch:
            self._scratch[key] = (request.n_ctx, measure_scratch(self._runtime, lambda _share: None))
        n_ctx, needs = self._scratch[key]
        return {n: size + mask_bytes(n, request.n_ctx) - mask_bytes(n, n_ctx) for n, size in needs.items()}

    def schedule(self, request: Request) -> dict[str, Any]:
        """Takes a budget and a schedule, and uploads what stays resident: so the engine knows how fast the link is."""
        assert request.schedule is not None
        self.sim.charge(request.card) if request.card else self.sim.free_of_charge()
        release = self._device.set_budget(request.budget_bytes, 10_000_000_000)
        if not release.completed:
            raise EngineError("the budget was not reached in ten seconds", code="timeout")
        self._device.set_schedule(request.schedule)
        self._prepared.clear()
        self._last_tokens = 0
        while self._device.settle(SETTLE_BYTES):
            pass
        return {}

    def prepare(self, request: Request) -> None:
        """Brings the device copies of the filled cache up to date: one token, computed as the step that follows. An
        answer is timed where it is under way, with what its steps keep in the scratch of longer ones."""
        assert self.steps is not None
        tokens = max(1, request.tokens)
        wanted = (self.steps.fills, tokens)
        answering = tokens == 1 and self._last_tokens != 1
        for _ in range(LENDING_STEPS if answering else wanted not in self._prepared):
            self.steps.step(request.depth, [1], announced=tokens)
            self.steps.rewind(request.depth)
        self._prepared.add(wanted)
        self._last_tokens = tokens

    def prefill(self, request: Request) -> int:
        assert self.steps is not None
        return self.steps.prefill(request.depth, request.tokens, request.limit_s, request.lead)

    def trace(self, request: Request) -> dict[str, Any]:
        """Events of one step in the steady state, and what the sub-layers are."""
        assert self.steps is not None
        assert request.card is not None
        self.sim.charge(request.card)
        for last in (False, False, True):
            self._device.trace(TRACE_EVENTS if last else 0)
            self.steps.prompt_step(request.depth, request.tokens, 0.0, 0)
        events = [dataclasses.asdict(event) for event in self._device.read_trace(TRACE_EVENTS)]
        self._device.trace(0)
        sublayers = [{"index": s.index, "layer": s.layer, "kind": s.kind} for s in self._device.sublayers()]
        return {"events": events, "sublayers": sublayers}

    def memory(self) -> dict[str, int]:
        """Peaks and fallbacks since the last call: proof that no byte was taken beyond the budget."""
        memory, stats = self._device.memory(), self._device.stats()
        self._device.reset_stats()
        return {
            "peak_used_bytes": memory.peak_used_bytes,
            "over_budget_events": memory.over_budget_events,
            "n_fallback_cpu": stats["n_fallback_cpu"],
            "n_graphs": stats["n_graphs"],
            "n_pieces_streamed": stats["n_pieces_streamed"],
            "bytes_streamed": stats["bytes_streamed"],
            "ns_wait_device": stats["ns_wait_device"],
            "ns_cpu_compute": stats["ns_cpu_compute"],
        }

    def close_model(self) -> None:
        if self.steps is not None:
            self.steps.close()
        if self._runtime is not None:
            self._runtime.close()
        self.steps = self._runtime = None

    def close(self) -> None:
        self.close_model()
        self._device.close()
