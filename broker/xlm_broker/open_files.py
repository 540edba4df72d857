"""How many files, sockets among them, the broker may have open, and a doorman who keeps connections below that.

libzmq ends the whole process when it cannot accept a connection for want of a file. So the limit is raised as far as
the system allows, and connections beyond what clients need are closed as soon as they are accepted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket as plain_socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from xlm._threads import answer_quickly
from xlm.errors import RequestError

FEWEST_FILES: Final = 64  # the broker's own and its children's pipes take some thirty
ENOUGH_FILES: Final = 4096  # more than any number of games and tools on one machine
_MOST_FILES: Final = 65_536  # what is asked for where the system knows no limit
_TOLD_EVERY_S: Final = 10.0


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


def most_files(limit: int | None, max_clients: int) -> int | None:
    """From so many open files on the door is shut: twice what clients need, but at most half of what there may be."""
    return None if limit is None else min(limit // 2, 2 * max_clients + FEWEST_FILES)


class Doorman:
    """Watches one listening socket, in a thread of its own: a loop that is busy must not let a flood in meanwhile.

    ``most_files``: open files from which on it shuts. ``tell``: called in its thread with how many it shut.
    """

    def __init__(self, socket: zmq.Socket[bytes], most_files: int, tell: Callable[[int], None]) -> None:
        self._socket = socket
        self._most = most_files
        self._tell = tell
        self._address = _address(socket)
        self._nothing = os.open(os.devnull, os.O_RDWR)
        self._held = os.dup(self._nothing)  # a number of our own: there may be no other left
        self._monitor = _monitor(socket)
        self._thread = threading.Thread(target=self._watch, name="doorman", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """To be called before the socket is closed."""
        self._socket.monitor(None, 0)
        self._thread.join()
        os.close(self._held)
        os.close(self._nothing)

    def _watch(self) -> None:
        answer_quickly()
        count, told_s = 0, float("-inf")
        with self._monitor:
            while (descriptor := _accepted(self._monitor)) is not None:
                if descriptor < self._most:  # the lowest free number is given
                    continue
                self._shut(descriptor)
                count += 1
                if time.monotonic() - told_s >= _TOLD_EVERY_S:
                    self._tell(count)
                    count, told_s = 0, time.monotonic()

    def _shut(self, descriptor: int) -> None:
        """libzmq owns the descriptor and sees the end of the connection; by now it may be another's."""
        with contextlib.suppress(OSError):
            os.dup2(descriptor, self._held, inheritable=False)
            connection = plain_socket.socket(fileno=self._held)
            try:
                if connection.getsockname() == self._address:
                    connection.shutdown(plain_socket.SHUT_RDWR)
            finally:
                connection.detach()
        os.dup2(self._nothing, self._held, inheritable=False)


def _monitor(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Its queue is short, a thousand events: while it is full libzmq accepts nothing. So a doorman without a CPU is not
    overrun where there are that many files beyond those it allows."""
    address = f"inproc://doorman-{secrets.token_hex(8)}"  # libzmq gives a name free some time after its end
    socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_MONITOR_STOPPED)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.rcvhwm = 1  # and libzmq's end of it holds 1000
    monitor.connect(address)
    return monitor


def _accepted(monitor: zmq.Socket[bytes]) -> int | None:
    """The descriptor of the next connection; None at the end."""
    try:
        event = parse_monitor_message(monitor.recv_multipart())
    except zmq.ZMQError:  # the context is gone
        return None
    return int(event["value"]) if event["event"] == zmq.EVENT_ACCEPTED else None


def _address(socket: zmq.Socket[bytes]) -> str | tuple[str, int] | tuple[str, int, int, int]:
    """What getsockname() says of a connection that was accepted here."""
    scheme, _, rest = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").partition("://")
    if scheme == "ipc":
        return rest
    host, _, port = rest.rpartition(":")
    bare = host.strip("[]")
    return (bare, int(port), 0, 0) if ":" in bare else (bare, int(port))
