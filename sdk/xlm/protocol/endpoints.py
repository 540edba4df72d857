"""Where a broker listens: checked endpoints, for client and broker alike.

``ipc:///absolute/path`` (a socket file, private to its folder's owner) or
``tcp://127.0.0.1:PORT``, ``tcp://[::1]:PORT``. A broker is never reachable from
another machine, so every other host is refused. No function here opens anything.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

import platformdirs

from xlm.errors import EndpointError

ENVIRONMENT_VARIABLE: Final = "XLM_ENDPOINT"
MAX_PATH_BYTES: Final = 107  # sockaddr_un.sun_path holds 108 with its final NUL: man 7 unix
DEFAULT_TCP_PORT: Final = 17861  # where no ipc exists (Windows); from the unassigned range of the IANA registry


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked endpoint. ``url`` is what ZeroMQ takes; ``path`` belongs to ipc, ``host`` and ``port`` to tcp."""

    scheme: Literal["ipc", "tcp"]
    url: str
    path: Path | None = None
    host: str = ""
    port: int = 0  # 0: the broker chooses (only with any_port)

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    def __str__(self) -> str:
        return self.url


def default_endpoint() -> str:
    """``$XLM_ENDPOINT``, or a socket in the user's runtime folder (tcp on Windows). Creates nothing."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return named
    if sys.platform == "win32":
        return f"tcp://127.0.0.1:{DEFAULT_TCP_PORT}"
    with warnings.catch_warnings():  # without XDG_RUNTIME_DIR it falls back to a private folder, and warns
        warnings.simplefilter("ignore")
        folder = platformdirs.user_runtime_path("xlm", ensure_exists=False)
    return f"ipc://{folder / 'broker.sock'}"


def parse_endpoint(text: str | None = None, *, any_port: bool = False) -> Endpoint:
    """The endpoint ``text`` names; None or "" is the default one. ``any_port`` allows port 0 and ``*``.

    Raises EndpointError: ``endpoint_invalid``, ``endpoint_too_long`` or ``endpoint_not_local``.
    """
    text = text or default_endpoint()
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "ipc":
        return _ipc(text, rest)
    if separator and scheme == "tcp":
        return _tcp(text, rest, any_port)
    raise _error("endpoint_invalid", text, "is not an endpoint")


def _ipc(text: str, rest: str) -> Endpoint:
    if "\0" in rest or not rest.startswith("/") or rest.endswith("/"):
        # "*", "@name" (abstract: no file permissions) and relative paths end here too
        raise _error("endpoint_invalid", text, "does not name a socket file by its absolute path")
    if any("\ud800" <= c <= "\udfff" for c in rest):  # bytes of a command line that are no text come so
        raise _error("endpoint_invalid", text, "is not UTF-8")
    length_bytes = len(os.fsencode(rest))
    if length_bytes > MAX_PATH_BYTES:
        raise _error("endpoint_too_long", text, f"has a path of {length_bytes} bytes")
    return Endpoint("ipc", f"ipc://{rest}", path=Path(rest))


def _tcp(text: str, rest: str, any_port: bool) -> Endpoint:
    host, separator, port_text = rest.rpartition(":")
    if not separator or not host:
        raise _error("endpoint_invalid", text, "has no port")
    host = _loopback(text, host)
    port = _port(text, port_text, any_port)
    shown = f"[{host}]" if ":" in host else host
    return Endpoint("tcp", f"tcp://{shown}:{port or '*'}", host=host, port=port)


def _loopback(text: str, host: str) -> str:
    if host.lower() == "localhost":
        return "127.0.0.1"  # one meaning on every machine, whatever its resolver prefers
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(unquote(host[1:-1]) if bracketed else host)
    except ValueError:
        raise _error("endpoint_not_local", text, f"names the host {host!r}") from None
    if bracketed != (address.version == 6):
        raise _error("endpoint_invalid", text, "writes its address wrongly")
    if not address.is_loopback:
        raise _error("endpoint_not_local", text, f"names {address}")
    return str(address)


def _port(text: str, port_text: str, any_port: bool) -> int:
    if any_port and port_text in ("*", "0"):
        return 0
    if not (port_text.isascii() and port_text.isdecimal() and len(port_text) <= 5 and 0 < int(port_text) < 65536):
        raise _error("endpoint_invalid", text, f"has no valid port: {port_text[:16]!r}")
    return int(port_text)


def _error(code: str, text: str, problem: str) -> EndpointError:
    return EndpointError(f"{text[:200]!r} {problem}", code=code)
