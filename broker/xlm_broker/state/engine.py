"""What the broker knows of its engine child. Data only; EngineLife changes it, the other parts read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from xlm.errors import XlmError, from_code
from xlm.protocol import link

# down: no process, waits for its next start    spawning: process asked for, has not spoken yet
# loading: Start was sent                       ready: model loaded
# killing: to be dead soon                      failed: given up, no further start
# stopping: shutdown                            stopped: shutdown done
Phase = Literal["down", "spawning", "loading", "ready", "killing", "failed", "stopping", "stopped"]


@dataclass(slots=True)
class Problem:
    """Why the engine is not there, as the error a client gets."""

    code: str
    message: str
    hint: str = ""
    minimum_bytes: int | None = None

    def error(self) -> XlmError:
        return from_code(self.code, self.message, hint=self.hint, minimum_bytes=self.minimum_bytes)


@dataclass(slots=True)
class Engine:
    """``holds``: the process was given a budget, so it may have device memory until its death is confirmed."""

    phase: Phase = "down"
    incarnation: int = 0
    alive: bool = False  # a process was asked for and its end was not reported
    holds: bool = False
    pid: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    stage: str = ""
    fraction: float = 0.0
    model: link.ModelFacts | None = None  # of the last load; kept over restarts
    device: link.DeviceFacts | None = None
    stats: link.Stats | None = None
    experts: list[link.ExpertStats] = field(default_factory=list)  # the last that were told
    lost: bool = False  # the device is gone or could not be opened; everything runs on the CPU
    failures: int = 0  # deaths in a row without a generated token between them
    restarts: int = 0
    problem: Problem | None = None  # of the last death; final in phase "failed"
    since_ns: int = 0  # of the phase
    heard_ns: int = 0  # last sign that it gets on with its work
    steps: int = 0  # by its last Stats
    hung: bool = False  # killed because it stood still over an answer
    token_ns: int | None = None  # last generated token: health means generating one
    rss_bytes: int = 0

    @property
    def state(self) -> str:
        """For status: starting, loading, ready, restarting, failed or stopped."""
        match self.phase:
            case "loading" | "ready" | "failed":
                return self.phase
            case "stopping" | "stopped":
                return "stopped"
        return "restarting" if self.restarts or self.phase == "killing" else "starting"

    @property
    def ready(self) -> bool:
        return self.phase == "ready"

    def known_total_bytes(self, config: link.DeviceConfig, reported: int | None) -> int | None:
        """Size of the device: by the engine, else by configuration or NVML; None while nobody knows."""
        if config.kind == "none":
            return 0
        if self.device is not None and (self.device.total_bytes or self.device.kind == "none"):
            return self.device.total_bytes
        return config.sim.vram_bytes if config.kind == "sim" else reported
