"""What the state machine is told at its start. Built by the command line's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from xlm.protocol import link

MS = 1_000_000  # nanoseconds in a millisecond
S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """Who decides the budget.

    mode "fixed": ``fixed_bytes`` (None: all the device gives), lowered by clients' caps and reservations.
    mode "game":  as long as no live lease has spoken about budgets (set_budget or reserve) it is
                  ``idle_bytes``; after that it is what the clients' caps and reservations leave.
    """

    mode: Literal["fixed", "game"] = "fixed"
    fixed_bytes: int | None = None
    idle_bytes: int = 0
    max_bytes: int | None = None  # --budget-max, holds in both modes
    headroom_bytes: int = 0  # of the device, never offered: display, drivers, other programs


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of everything a peer can make grow."""

    max_clients: int = 64
    max_sessions: int = 256
    max_client_sessions: int = 64  # of one client: the others find room
    max_answers: int = 128  # answers queued or in progress, all sessions; a session has one at a time
    max_budget_requests: int = 64  # set_budget and reserve not yet answered, per client
    max_outbox: int = 1024  # messages kept for a stalled client; one more ends its lease
    max_outbox_bytes: int = 4 << 20  # the same for what they weigh; an answer of ordinary length is some 10 KiB
    max_expired: int = 1024  # identities remembered to say lease_expired instead of not_connected
    max_image_bytes: int = 64 << 20  # of one image, as it is uploaded
    max_images_per_say: int = 8
    max_client_image_bytes: int = 256 << 20  # images and unfinished uploads of one client
    max_client_images: int = 1024  # the same as a number
    max_uploads: int = 16  # unfinished, of one client
    max_image_store_bytes: int = 1 << 30  # of all clients


@dataclass(frozen=True, slots=True)
class Timing:
    """All times in nanoseconds."""

    heartbeat_ns: int = 1 * S
    session_grace_ns: int = 60 * S  # how long a lost client's sessions wait for it
    grow_quiet_ns: int = 1 * S  # a grow after so long without any change is planned at once
    grow_stable_ns: int = 200 * MS  # otherwise when the budget was still for so long
    grow_window_ns: int = 2 * S  # or after so long, for the lowest budget of that window
    plan_patience_ns: int = 1 * S  # a better schedule that has not been found by then is not waited for
    plan_retry_ns: int = 60 * S  # a search that failed is asked for again after this, doubling up to 64 times
    release_notice_ns: int = 2 * S  # who waits for a release is told by then that the engine does not answer
    release_patience_ns: int = 10 * S  # an engine that has not released by then is killed
    spawn_patience_ns: int = 60 * S  # spawn -> Started
    load_patience_ns: int = 300 * S  # silence while loading
    hang_patience_ns: int = 60 * S  # one step while generating; 64 tokens of a huge model on a CPU take half of it
    stop_patience_ns: int = 5 * S
    restart_first_ns: int = 200 * MS
    restart_max_ns: int = 5 * S
    probe_first_ns: int = 1 * S  # a lost device is tried again after this, doubling ...
    probe_max_ns: int = 30 * S  # ... up to this
    spill_hold_ns: int = 300 * S  # how long a budget lowered by the spill watchdog stays lowered


@dataclass(frozen=True, slots=True)
class PacingSettings:
    """``min_duty``: the share of time that steps get however bad the games' frames are, over 0 and at most 1;
    ``max_gap_ns``: a step comes at the latest so long after the one before.
    """

    min_duty: float = 0.05
    max_gap_ns: int = 1 * S


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Everything the machine needs to know. ``id_seed``: random bytes, so that ids cannot be guessed."""

    device: link.DeviceConfig
    model: link.ModelConfig
    id_seed: bytes
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    limits: Limits = field(default_factory=Limits)
    timing: Timing = field(default_factory=Timing)
    broker_version: str = ""
    endpoint: str = ""
    max_engine_failures: int = 5
    pacing: PacingSettings = field(default_factory=PacingSettings)
    find_plans: bool = False  # schedules are looked for beside everything else (FindPlan); else made at once only
    require_device: bool = False  # a device, or a fixed budget, on which nothing can run is a failure of the start
