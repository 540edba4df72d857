"""The engine's own parts over a small vision-language model, in this process: device, runtime, batcher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.support.vlm import Files
from xlm.protocol import link
from xlm.protocol.messages import Sampling
from xlm_engine import device as devices
from xlm_engine import engine as engines
from xlm_engine import logs, warmup
from xlm_engine.batcher import Batcher
from xlm_engine.llama_log import LlamaLog
from xlm_engine.meter import Meter
from xlm_engine.policy import Policy
from xlm_engine.runtime import Runtime
from xlm_engine.vision.image import Image
from xlm_native import Device

SIM = link.DeviceConfig(kind="sim", sim=link.SimConfig(vram_bytes=1 << 30))
_LOG = LlamaLog()
logs.configure("error")


@dataclass
class Rig:
    """One model, one device; ``answers`` by gen_id."""

    device: Device
    runtime: Runtime
    batcher: Batcher
    messages: list[link.FromEngine] = field(default_factory=list)
    contexts: dict[str, tuple[bytes, list[str]]] = field(default_factory=dict)
    gen_ids: Any = field(default_factory=lambda: count(1))

    def schedule(self, budget_bytes: int) -> None:
        """Everything resident that fits; the rest is streamed or on the CPU, as the backend sees it."""
        subs = self.runtime.language_sublayers()
        placement = bytes(0 if sub.kind == "lookup" or budget_bytes == 0 else link.RESIDENT for sub in subs)
        self.batcher.set_schedule(
            link.Schedule(
                schedule_id=next(self.gen_ids),
                budget_bytes=budget_bytes,
                tiers=[link.Tier(max_tokens=1 << 20, placement=placement)],
                priority=list(range(len(subs))),
                ring_bytes=budget_bytes // 8,
                reserve_bytes=budget_bytes // 4,
            )
        )

    def set_budget(self, budget_bytes: int) -> None:
        self.device.set_budget(budget_bytes, 10**10)
        self.schedule(budget_bytes)

    def start(self, text: str, images: list[Image], session: str = "npc", **options: Any) -> int:
        gen_id = next(self.gen_ids)
        context, keys = self.contexts.get(session, (b"", []))
        settings = {"max_tokens": 12, "sampling": Sampling(temperature=0.0), **options}
        request = link.Generate(
            gen_id=gen_id,
            session_id=session,
            text=text,
            context=context,
            images=[image.key for image in images],
            context_images=keys,
            **settings,
        )
        self.batcher.generate(request, {image.key: image for image in images})
        return gen_id

    def finish(self, gen_id: int) -> link.Finished:
        """Steps until the answer is there."""
        while self.batcher.has_work:
            self.batcher.step()
        ended = next(m for m in self.messages if getattr(m, "gen_id", 0) == gen_id and not isinstance(m, link.Piece))
        assert isinstance(ended, link.Finished), ended
        return ended

    def tokens(self, gen_id: int) -> list[int]:
        pieces = [m for m in self.messages if isinstance(m, link.Piece) and m.gen_id == gen_id]
        return [token for piece in pieces for token in piece.token_ids]

    def say(self, text: str, images: list[Image], session: str = "npc", **options: Any) -> list[int]:
        """A turn of a conversation that goes on; the tokens of the answer."""
        gen_id = self.start(text, images, session, **options)
        finished = self.finish(gen_id)
        context = self.contexts.get(session, (b"", []))[0]
        kept = b"".join(context[4 * start : 4 * end] for start, end in finished.context_keep)
        self.contexts[session] = (kept + finished.context_delta, finished.context_images)
        return self.tokens(gen_id)


@contextmanager
def rig(
    files: Files,
    budget_bytes: int = 0,
    device: link.DeviceConfig = SIM,
    n_ubatch: int = 64,
    n_threads: int = 1,
    **config: Any,
) -> Iterator[Rig]:
    settings = {"n_ctx": 4096, "n_sessions": 2, "mmproj": str(files.mmproj), **config}
    opened = devices.open_device(device, budget_bytes, n_threads)
    model = link.ModelConfig(path=str(files.model), n_ubatch=n_ubatch, **settings)
    runtime: Runtime | None = None
    _LOG.install()
    try:
        runtime = Runtime(opened, model, n_threads, _LOG, lambda _: True)
        prompts = engines.make_prompts(runtime, model)
        warmup.measure_scratch(runtime, lambda _: None)
        messages: list[link.FromEngine] = []
        batcher = Batcher(runtime, prompts, Policy("exact", n_ubatch), Meter(), messages.append)
        made = Rig(opened, runtime, batcher, messages)
        made.schedule(budget_bytes)
        yield made
    finally:
        if runtime is not None:
            runtime.close()
        opened.close()
