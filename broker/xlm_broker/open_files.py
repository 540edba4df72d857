"""How many files, sockets among them, the broker may have open, and a doorman who keeps connections below that.

libzmq ends the whole process when it cannot accept a connection for want of a file. So the limit is raised as far as
the system allows, and connections that would use up more than half of it are closed as soon as they are accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as plain_socket
import sys
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from xlm.errors import RequestError
from xlm_broker.telemetry import logger

FEWEST_FILES: Final = 64  # the broker's own and its children's pipes take some thirty
ENOUGH_FILES: Final = 4096  # more than any number of games and tools on one machine
_MOST_FILES: Final = 65_536  # what is asked for where the system knows no limit
_TOLD_EVERY_S: Final = 10.0
_BATCH_EVENTS: Final = 256  # then it is looked whether there are too many: a flood may be as fast as this loop


def file_limits() -> tuple[int, int] | None:
    """Soft and hard limit of open files; None where there are none (Windows)."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    return (most if soft == resource.RLIM_INFINITY else soft), most


def raise_file_limit() -> int | None:
    """Raises the soft limit to the hard one, or to 65,536; the limit that holds then. None: there is none.

    RequestError where even that is too low: such a broker would run, and nobody could connect.
    """
    limits = file_limits()
    if limits is None or sys.platform == "win32":
        return None
    if limits[1] < FEWEST_FILES:
        raise RequestError(
            f"this process may have {limits[1]} files open; the broker needs at least {FEWEST_FILES}",
            code="option_invalid",
            hint="raise the limit, for instance: ulimit -n 1024",
        )
    import resource

    soft, wanted = limits[0], min(limits[1], _MOST_FILES)
    if soft >= wanted:
        return soft
    with contextlib.suppress(OSError, ValueError):  # macOS may refuse
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return wanted
    return soft


class Doorman:
    """Watches one listening socket from inside an asyncio loop. ``most_files``: open files from which on it shuts."""

    def __init__(self, socket: zmq.Socket[bytes], most_files: int) -> None:
        self._socket = socket
        self._most = most_files
        self._again: asyncio.Handle | None = None
        self._monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._monitor.FD, self._on_accepted)
        self._address = _address(socket)
        self._told_s = float("-inf")
        self._on_accepted()  # libzmq's descriptor signals only what comes after an empty-handed look

    def close(self) -> None:
        """To be called before the socket is closed."""
        self._loop.remove_reader(self._monitor.FD)
        if self._again is not None:
            self._again.cancel()
        self._socket.disable_monitor()

    def _on_accepted(self) -> None:
        self._again = None
        accepted: list[int] = []
        with contextlib.suppress(zmq.Again):
            while len(accepted) < _BATCH_EVENTS:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                accepted.append(int(event["value"]))
        over = [descriptor for descriptor in accepted if descriptor >= self._most]  # the lowest free number is given
        if over:
            self._shut(over)
        if len(accepted) == _BATCH_EVENTS:
            self._again = self._loop.call_soon(self._on_accepted)

    def _shut(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            self._shut_one(descriptor)
        now_s = self._loop.time()
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            logger().error("connections_refused", count=len(descriptors), most_files=self._most)

    def _shut_one(self, descriptor: int) -> None:
        """libzmq owns the descriptor and sees the end of the connection; by now it may be another's."""
        with contextlib.suppress(OSError), plain_socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getsockname() == self._address:
                connection.shutdown(plain_socket.SHUT_RDWR)


def _address(socket: zmq.Socket[bytes]) -> str | tuple[str, int] | tuple[str, int, int, int]:
    """What getsockname() says of a connection that was accepted here."""
    scheme, _, rest = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").partition("://")
    if scheme == "ipc":
        return rest
    host, _, port = rest.rpartition(":")
    bare = host.strip("[]")
    return (bare, int(port), 0, 0) if ":" in bare else (bare, int(port))
