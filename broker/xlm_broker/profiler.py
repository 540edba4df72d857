"""Has this machine measured: starts the measuring process, stores what it sends, survives what it does not survive.

The measuring process (``python -m xlm_engine.profile``) loads ggml and GPU libraries; this module does not. If it
dies in the middle of a kernel, that kernel is left out and another process goes on with the rest. What was stored
stays: the next run goes on from there. The messages are described in xlm_engine/profile/wire.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from xlm.errors import CODES, EngineError, ProfileError, XlmError
from xlm.protocol.link import DeviceConfig
from xlm_broker.child_guard import PARENT_VARIABLE
from xlm_broker.planner.sharding.profile import KernelPoint, LinkPoint, MachineProfile, ProfileKey
from xlm_broker.profile_store import ProfileWriter, check_profile, load_profile

COMMAND: Final = (sys.executable, "-m", "xlm_broker.child_guard", "xlm_engine.profile")
QUICK_SECONDS: Final = 42.0  # of measuring; loading ggml and opening a device come on top
GRACE_S: Final = 8.0  # then a kernel that does not end is ended
MAX_CRASHES: Final = 5
_STDERR_TAIL: Final = 2000
_NOTE_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to measure. ``threads`` 0: the physical cores. ``fresh``: forget what the file holds.

    ``seconds``: of measuring, at most; 0 for no limit, None for QUICK_SECONDS if ``quick``, else no limit.
    """

    device: DeviceConfig
    quick: bool = False
    model: Path | None = None
    threads: int = 0
    fresh: bool = False
    seconds: float | None = None

    @property
    def limit_s(self) -> float:
        """0 for no limit."""
        return self.seconds if self.seconds is not None else QUICK_SECONDS if self.quick else 0.0


@dataclass(kw_only=True)
class Outcome:
    """``replaced``: why an older profile was set aside; empty if none was. ``measured``: points, however often each.
    ``skipped``: tasks that crashed."""

    path: Path
    key: ProfileKey
    replaced: str = ""
    measured: int = 0
    left_out: int = 0
    seconds: float = 0.0
    skipped: list[str] = field(default_factory=list)

    def to_json(self, profile: MachineProfile) -> dict[str, Any]:
        return {
            **asdict(self),
            "path": str(self.path),
            "quick": profile.quick,
            "complete": profile.complete,
            "kernels": len(profile.kernels),
            "links": len(profile.links),
            "file_bytes": self.path.stat().st_size,
            "notes": profile.notes,
        }


# -- messages of the measuring process


class Identity(msgspec.Struct, tag_field="t", tag="identity"):
    cpu: str
    n_cores: int
    isa: str
    gpu: str
    driver: str
    ggml: str

    def key(self) -> ProfileKey:
        return ProfileKey(self.cpu, self.n_cores, self.isa, self.gpu, self.driver, self.ggml)


class Begin(msgspec.Struct, tag_field="t", tag="begin"):
    task: str


class Points(msgspec.Struct, tag_field="t", tag="points"):
    kernels: list[KernelPoint] = []
    links: list[LinkPoint] = []


class Progress(msgspec.Struct, tag_field="t", tag="progress"):
    """``left_s``: estimate of the time that is left."""

    done: int
    total: int
    left_s: float
    what: str


class Note(msgspec.Struct, tag_field="t", tag="note"):
    name: str
    text: str


class Done(msgspec.Struct, tag_field="t", tag="done"):
    measured: int
    left_out: int


class Failed(msgspec.Struct, tag_field="t", tag="failed"):
    code: str
    message: str
    hint: str = ""


Message = Identity | Begin | Points | Progress | Note | Done | Failed
Report = Callable[[Progress], None]


class Crashed(Exception):
    """The measuring process ended without a word."""


def identify(device: DeviceConfig, command: tuple[str, ...] = COMMAND) -> ProfileKey:
    """The key a profile of this machine with this device must have. DeviceError, or EngineError if the child dies."""
    try:
        with _child(command, Wanted(device=device), (), 0.0, identify_only=True) as child:
            return child.identity().key()
    except Crashed as error:
        raise EngineError(str(error), code="internal") from error


def measure(path: Path, wanted: Wanted, report: Report, command: tuple[str, ...] = COMMAND) -> Outcome:
    """Measures what the file does not have yet. ProfileError for a file that is no profile (see ``Wanted.fresh``),
    DeviceError or ModelError for what is wanted, EngineError if the measuring process dies again and again.

    Points are stored as they come, one transaction each.
    """
    return _Run(path, wanted, report, command).go()


class _Run:
    """One ``measure``: several measuring processes, if need be, one file."""

    def __init__(self, path: Path, wanted: Wanted, report: Report, command: tuple[str, ...]) -> None:
        self._path: Final = path
        self._wanted: Final = wanted
        self._report: Final = report
        self._command: Final = command
        self._start: Final = time.monotonic()
        self._writer: ProfileWriter | None = None
        self._outcome: Outcome | None = None
        self._skipped: Final[list[str]] = []
        self._task = ""
        self._remeasure = False
        # names of what this run measured, in the order of the first time
        self._kernels: Final[dict[tuple[object, ...], None]] = {}
        self._links: Final[dict[tuple[object, ...], None]] = {}
        self._last = Progress(0, 0, 0.0, "")
        self._done = False

    def go(self) -> Outcome:
        try:
            while not self._attempt():
                if len(self._skipped) > MAX_CRASHES:
                    raise EngineError(
                        f"the measuring process died {len(self._skipped)} times, last in {self._skipped[-1]}",
                        code="internal",
                    )
            return self._finish()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _attempt(self) -> bool:
        """False: the measuring process died, and may be started again without what killed it."""
        self._task = ""
        try:
            with _child(self._command, self._wanted, self._skipped, self._seconds()) as child:
                self._open(child.identity().key())
                child.tell(self._known())
                self._follow(child)
        except Crashed as error:
            if self._over():
                return True
            if not self._task:
                raise EngineError(str(error), code="internal") from error
            self._skipped.append(self._task)
            self._note(f"crashed.{self._task}", str(error))
            return False
        return True

    def _seconds(self) -> float:
        """Left of the time limit; 0 for none."""
        limit_s = self._wanted.limit_s
        return max(1.0, limit_s - (time.monotonic() - self._start)) if limit_s else 0.0

    def _over(self) -> bool:
        return 0 < self._wanted.limit_s <= time.monotonic() - self._start

    # -- the file

    def _open(self, key: ProfileKey) -> None:
        if self._writer is not None:
            return
        replaced = set_aside(self._path, key, self._wanted.fresh)
        self._writer = ProfileWriter(self._path, key, quick=self._wanted.quick)
        self._outcome = Outcome(path=self._path, key=key, replaced=replaced, skipped=self._skipped)
        self._remeasure = load_profile(self._path).quick and not self._wanted.quick
        if self._remeasure:  # a quick profile's points are coarse; from here on it is an interrupted full one
            self._writer.set_meta(quick="0", complete="0")

    def _known(self) -> dict[str, Any]:
        assert self._writer is not None
        if self._remeasure:  # only what this run measured before its child died
            return {"kernels": list(self._kernels), "links": list(self._links)}
        return {"kernels": sorted(self._writer.have_kernels()), "links": sorted(self._writer.have_links())}

    def _store(self, points: Points) -> None:
        assert self._writer is not None
        assert self._outcome is not None
        self._writer.add(points.kernels, points.links)
        names = ((p.device, p.op, p.type, p.shape, p.tokens, p.threads, p.load) for p in points.kernels)
        self._kernels.update(dict.fromkeys(names))
        self._links.update(dict.fromkeys((p.direction, p.memory, p.size_bytes, p.cpu_threads) for p in points.links))
        self._outcome.measured = len(self._kernels) + len(self._links)

    def _note(self, name: str, text: str) -> None:
        if self._writer is not None:
            self._writer.set_meta(**{f"note.{name}": text[:_NOTE_CHARS]})

    def _follow(self, child: _Child) -> None:
        assert self._outcome is not None
        for message in child.messages():
            match message:
                case Points():
                    self._store(message)
                case Begin():
                    self._task = message.task
                case Progress():
                    self._last = message
                    self._report(message)
                case Note():
                    self._note(message.name, message.text)
                case Done():
                    self._outcome.left_out = message.left_out
                    self._done = True
                    return
                case _:
                    raise EngineError("the measuring process repeats itself", code="internal")

    def _finish(self) -> Outcome:
        outcome, writer = self._outcome, self._writer
        assert outcome is not None
        assert writer is not None
        outcome.seconds = time.monotonic() - self._start
        if outcome.measured:
            self._note("measured_at", datetime.now(UTC).isoformat(timespec="seconds"))
        if not self._done:  # ended by force at the time limit
            outcome.left_out = max(1, self._last.total - self._last.done)
        if not outcome.left_out and load_profile(self._path).quick == self._wanted.quick:
            writer.finish()
        return outcome


def set_aside(path: Path, key: ProfileKey, fresh: bool) -> str:
    """Renames a profile of another machine (or with ``fresh`` any file there) to NAME.old; why, or "" if it stays.

    ProfileError ``profile_corrupt`` for a file that is no profile, which is left alone.
    """
    if not path.is_file():
        return ""
    reason = "measured anew, as asked" if fresh else ""
    try:
        check_profile(load_profile(path), key)
    except ProfileError as error:
        if error.code != "profile_stale" and not fresh:
            raise ProfileError(
                error.message, code=error.code, hint="name another file, or replace it with --fresh"
            ) from (error)
        reason = error.message
    if reason:
        path.replace(path.with_name(path.name + ".old"))
    return reason


# -- the measuring process


class _Child:
    """Spoken to in lines. ``messages`` ends with the process; Crashed if that was no regular end."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
        self._process: Final = process
        self._stderr: Final = stderr
        self._decoder: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)

    def tell(self, message: Any) -> None:
        """Crashed if nobody listens any more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._crash() from None

    def identity(self) -> Identity:
        message = next(self.messages())
        if not isinstance(message, Identity):
            raise EngineError("the measuring process does not say what it is", code="internal")
        return message

    def messages(self) -> Iterator[Message]:
        """Until Done. XlmError for a Failed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = self._decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise EngineError(f"the measuring process sent {line[:80]!r}: {error}", code="internal") from error
            if isinstance(message, Failed):
                raise _typed(message)
            yield message
        raise self._crash()

    def _crash(self) -> Crashed:
        status = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read()[-_STDERR_TAIL:].decode("utf-8", "replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Crashed(f"the measuring process ended with {how}" + (f": {said[-1]}" if said else ""))


def _typed(message: Failed) -> XlmError:
    kind = CODES[message.code].error if message.code in CODES else EngineError
    return kind(message.message, code=message.code, hint=message.hint)


@contextlib.contextmanager
def _child(
    command: tuple[str, ...], wanted: Wanted, skip: Sequence[str], seconds: float, identify_only: bool = False
) -> Iterator[_Child]:
    """Started, given its request; ended when the block ends, at the latest some seconds after the time limit."""
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment
        )
        guard = threading.Timer(seconds + GRACE_S, process.kill)
        guard.daemon = True
        try:
            if seconds:
                guard.start()
            child = _Child(process, stderr)
            child.tell(_request(wanted, skip, seconds, identify_only))
            yield child
        finally:
            guard.cancel()
            _end(process)


def _request(wanted: Wanted, skip: Sequence[str], seconds: float, identify_only: bool) -> dict[str, Any]:
    return {
        "device": wanted.device,
        "quick": wanted.quick,
        "model": str(wanted.model or ""),
        "n_threads": wanted.threads,
        "seconds": seconds,
        "skip": list(skip),
        "identify_only": identify_only,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Closes the pipes, which ends a child that waits; then does not wait for one that computes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
