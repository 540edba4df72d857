"""libxlm, the library that games link, from Python: for hosts that embed Python, and for the ABI's own tests.

A program in Python alone has it easier with ``xlm.connect()``. This goes through
the C ABI: events are pulled, nothing blocks but the functions that say so.

    with Game("tavern") as game:
        game.wait_ready()
        game.set_budget_wait(256 << 20)
        greta = game.open_session("You are Greta, a blacksmith.")
        greta.say("Can you repair my sword?")
        for event in game.events(): ...            # once a frame

Errors are those of ``xlm.errors``; codes that only the C library knows come as
``XlmError`` with their name ("wrong_thread", "in_callback" …).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import cffi

from xlm import errors
from xlm.errors import DeviceError, XlmError
from xlm_native import _game_cdef
from xlm_native._load import library_path

LIBRARY: Final = "xlm"
NO_CAP: Final = (1 << 64) - 1
NO_DEADLINE: Final = (1 << 64) - 1
_DEFAULT_WAIT_S: Final = 5.0


class Kind(IntEnum):
    """xlm_event_kind."""

    STATE = 1
    LEASE = 2
    STATUS = 3
    SESSION_OPENED = 4
    SESSION_RESUMED = 5
    SESSION_RESET = 6
    SESSION_LOST = 7
    TOKENS = 8
    DONE = 9
    FAILED = 10
    NOTICE = 11


_KINDS: Final = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Lease:
    """xlm_lease: sizes in bytes, ``release_ns`` in nanoseconds. ``cap_bytes`` None: no cap."""

    granted_bytes: int
    used_bytes: int
    device_used_bytes: int
    cap_bytes: int | None
    reserved_bytes: int
    release_ns: int
    deadline_met: bool


@dataclass(frozen=True, slots=True)
class Event:
    """A copy of an xlm_event. ``kind`` is a ``Kind``, or a plain number this binding does not know."""

    kind: int
    id: int
    session: Session | None
    text: str
    detail: str
    state: int
    finish_reason: int
    notice: int
    token_ids: tuple[int, ...]
    lease: Lease | None
    error: XlmError | None


@functools.cache
def ffi() -> Any:
    instance = cffi.FFI()
    instance.cdef(_game_cdef.XLM)
    return instance


@functools.cache
def library(path: Path | None = None) -> Any:
    """libxlm, opened once. Raises DeviceError ``device_not_found`` or ``abi_mismatch``."""
    path = path or library_path(LIBRARY)
    try:
        return ffi().dlopen(os.fspath(path))
    except OSError as error:
        raise DeviceError(f"{path} cannot be loaded: {error}", code="abi_mismatch") from None


def struct(type_name: str, **values: Any) -> Any:
    """A struct as its *_INIT macro makes it, with some fields set."""
    made = ffi().new(f"{type_name} *", {"struct_size": ffi().sizeof(type_name)})
    for name, value in (_game_cdef.DEFAULTS.get(type_name, {}) | values).items():
        setattr(made, name, value)
    return made


class Game:
    """A client of libxlm. Not thread-safe for events; ``close()`` or ``with`` ends it."""

    def __init__(self, name: str, endpoint: str = "", *, server_key: str = "", max_sessions: int = 64) -> None:
        """Raises EndpointError and others of ``xlm.errors``; a missing broker is no error."""
        self._lib = library()
        self._sessions: dict[Any, Session] = {}
        texts = _Texts(name=name, endpoint=endpoint, server_key=server_key)
        handle = ffi().new("xlm_client **")
        options = struct("xlm_client_options", max_sessions=max_sessions, **texts.fields)
        self._check(self._lib.xlm_client_create(options, handle))
        self._handle = handle[0]

    @property
    def handle(self) -> Any:
        """The xlm_client *, for calls of ``library()`` that are not wrapped here."""
        return self._handle

    @property
    def ready(self) -> bool:
        return bool(self._lib.xlm_client_get_state(self._handle) == self._lib.XLM_CLIENT_READY)

    @property
    def lease(self) -> Lease:
        """What the broker last told; zeros before that."""
        lease = struct("xlm_lease")
        self._check(self._lib.xlm_client_get_lease(self._handle, lease))
        return _lease(lease)

    def wait_ready(self, timeout_s: float = _DEFAULT_WAIT_S) -> None:
        """Blocks until there is a connection. Raises BrokerError ``timeout``, or what stands against it for good."""
        self._check(self._lib.xlm_client_ready_wait(self._handle, _ns(timeout_s)))

    def wait_event(self, timeout_s: float = _DEFAULT_WAIT_S) -> bool:
        """Blocks until ``events()`` has one; False: none came."""
        result = self._lib.xlm_client_event_wait(self._handle, _ns(timeout_s))
        if result == self._lib.XLM_ERROR_TIMEOUT:
            return False
        self._check(result)
        return True

    def events(self) -> Iterator[Event]:
        """Takes what has arrived, oldest first. Never blocks."""
        event = struct("xlm_event")
        while self._check(self._lib.xlm_client_next_event(self._handle, event)) == 1:
            yield self._copy(event)

    def set_budget(self, cap_bytes: int | None, *, deadline_ns: int = NO_DEADLINE) -> int:
        """The ticket whose LEASE event will come.

        Raises BrokerError ``not_ready`` or ``broker_gone``, ProtocolError ``lease_expired``: the cap is kept.
        """
        ticket = ffi().new("uint64_t *")
        budget = _budget(cap_bytes, deadline_ns)
        self._check(self._lib.xlm_client_set_budget(self._handle, budget, ticket))
        return int(ticket[0])

    def set_budget_wait(
        self, cap_bytes: int | None, *, deadline_ns: int = NO_DEADLINE, timeout_s: float = _DEFAULT_WAIT_S
    ) -> Lease:
        """Blocks until the bytes are released."""
        lease = struct("xlm_lease")
        budget = _budget(cap_bytes, deadline_ns)
        self._check(self._lib.xlm_client_set_budget_wait(self._handle, budget, _ns(timeout_s), lease))
        return _lease(lease)

    def reserve_wait(self, size_bytes: int, *, timeout_s: float = _DEFAULT_WAIT_S) -> Lease:
        """Blocks until the bytes are free."""
        lease = struct("xlm_lease")
        call = self._lib.xlm_client_reserve_wait
        self._check(call(self._handle, size_bytes, NO_DEADLINE, _ns(timeout_s), lease))
        return _lease(lease)

    def request_status(self) -> int:
        """The ticket whose STATUS event will come; its ``detail`` is the whole status as JSON."""
        ticket = ffi().new("uint64_t *")
        self._check(self._lib.xlm_client_request_status(self._handle, ticket))
        return int(ticket[0])

    def frame(self, frame_ns: int, target_ns: int) -> None:
        """Reports a frame."""
        info = struct("xlm_frame_info", frame_ns=frame_ns, target_ns=target_ns)
        self._check(self._lib.xlm_frame(self._handle, info))

    def open_session(self, system: str = "", *, shift: bool = False, resume: str = "") -> Session:
        """Returns at once; the session is opened when there is a broker."""
        texts = _Texts(system=system, resume=resume)
        options = struct("xlm_session_options", overflow=int(shift), **texts.fields)
        handle = ffi().new("xlm_session **")
        self._check(self._lib.xlm_session_open(self._handle, options, handle))
        session = Session(self, handle[0])
        self._sessions[handle[0]] = session
        return session

    def close(self) -> None:
        """Says goodbye; blocks for a moment. May be called twice."""
        if self._handle is not None:
            self._check(self._lib.xlm_client_destroy(self._handle))
            self._handle = None
            self._sessions.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _check(self, result: int) -> int:
        if result < 0:
            error = struct("xlm_error")
            self._lib.xlm_last_error(error)
            raise _error(error)
        return result

    def _forget(self, handle: Any) -> None:
        self._sessions.pop(handle, None)

    def _copy(self, event: Any) -> Event:
        session = self._sessions.get(event.session) if event.session else None
        detail = event.status.json if event.status else event.detail
        return Event(
            kind=_KINDS.get(event.kind, event.kind),
            id=event.id,
            session=session,
            text=_text(event.text),
            detail=_text(detail),
            state=event.state,
            finish_reason=event.finish_reason,
            notice=event.notice,
            token_ids=tuple(event.token_ids[0 : event.n_token_ids]) if event.n_token_ids else (),
            lease=_lease(event.lease) if event.lease else None,
            error=_error(event.error) if event.error else None,
        )


@dataclass(frozen=True, slots=True)
class ImageBytes:
    """An image as xlm_image takes it; copied by ``say``. ``format``: one of "encoded", "rgba8", "rgbx8", "bgra8",
    "bgrx8", "rgb8"; sizes of all but "encoded". ``stride_bytes`` 0: rows without padding.
    """

    data: bytes | bytearray | memoryview
    format: str = "encoded"
    width: int = 0
    height: int = 0
    stride_bytes: int = 0
    bottom_up: bool = False

    def native(self, data: Any) -> dict[str, Any]:
        """Fields of the struct; ``data``: the bytes as cffi has them."""
        return {
            "struct_size": ffi().sizeof("xlm_image"),
            "format": getattr(library(), f"XLM_IMAGE_{self.format.upper()}"),
            "data": data,
            "size_bytes": len(data),
            "width": self.width,
            "height": self.height,
            "stride_bytes": self.stride_bytes,
            "bottom_up": self.bottom_up,
        }


class Session:
    """A conversation of a ``Game``; ends with it."""

    def __init__(self, game: Game, handle: Any) -> None:
        self._game = game
        self._lib = library()
        self._handle: Any = handle

    def say(
        self,
        text: str,
        *,
        stop: Sequence[str] = (),
        grammar: str = "",
        json_schema: str = "",
        images: Sequence[ImageBytes] = (),
        **numbers: Any,
    ) -> int:
        """The answer's id; its TOKENS and DONE events carry it. ``numbers``: fields of xlm_say_options."""
        texts = _Texts(text=text, grammar=grammar, json_schema=json_schema)
        said = texts.fields.pop("text")
        stops = [_Texts(stop=one) for one in stop]
        array = ffi().new("xlm_str[]", [one.fields["stop"] for one in stops])
        kept = [ffi().from_buffer(image.data) for image in images]
        shown = ffi().new("xlm_image[]", [image.native(data) for image, data in zip(images, kept, strict=True)])
        lists = {"stop": array, "n_stop": len(stops), "images": shown, "n_images": len(kept)}
        options = struct("xlm_say_options", **lists, **texts.fields, **numbers)
        answer = ffi().new("uint64_t *")
        self._game._check(self._lib.xlm_session_say(self._handle, said, options, answer))
        return int(answer[0])

    def cancel(self, answer: int = 0) -> None:
        """0: whatever it is answering."""
        self._game._check(self._lib.xlm_session_cancel(self._handle, answer))

    @property
    def id(self) -> str:
        """To resume it later; empty before it is open."""
        info = struct("xlm_session_info")
        self._game._check(self._lib.xlm_session_get_info(self._handle, info))
        return _text(info.id)

    def close(self) -> None:
        """No event of it comes after this."""
        handle, self._handle = self._handle, ffi().NULL
        self._game._check(self._lib.xlm_session_close(handle))
        self._game._forget(handle)


class _Texts:
    """xlm_str values, and the bytes they point to for as long as this lives."""

    def __init__(self, **texts: str) -> None:
        self._kept = {name: ffi().from_buffer(text.encode("utf-8")) for name, text in texts.items()}
        self.fields: dict[str, Any] = {
            name: ffi().new("xlm_str *", {"data": ffi().cast("const char *", data), "len": len(data)})[0]
            for name, data in self._kept.items()
        }


def _ns(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def _text(view: Any) -> str:
    return bytes(ffi().buffer(view.data, view.len)).decode("utf-8") if view.len else ""


def _budget(cap_bytes: int | None, deadline_ns: int) -> Any:
    return struct("xlm_budget", cap_bytes=NO_CAP if cap_bytes is None else cap_bytes, deadline_ns=deadline_ns)


def _lease(lease: Any) -> Lease:
    return Lease(
        granted_bytes=lease.granted_bytes,
        used_bytes=lease.used_bytes,
        device_used_bytes=lease.device_used_bytes,
        cap_bytes=None if lease.cap_bytes == NO_CAP else lease.cap_bytes,
        reserved_bytes=lease.reserved_bytes,
        release_ns=lease.release_ns,
        deadline_met=bool(lease.deadline_met),
    )


def _error(error: Any) -> XlmError:
    name, message, hint = (_text(view) for view in (error.name, error.message, error.hint))
    if name in errors.CODES:
        return errors.from_code(name, message, hint=hint, minimum_bytes=error.minimum_bytes or None)
    return XlmError(message, code=name, hint=hint, retryable=bool(error.retryable))
