"""Wakes a thread that polls, without giving it the interpreter before the caller itself waits.

A socket's own send lets go of the interpreter lock around the system call. The thread that it wakes takes the lock,
and the caller waits for it to be done: 0.4 ms of a step of 3.9 ms where an engine's decode thread sends a token to
its link thread. Rung without letting go, the link thread has the lock as soon as the next step computes.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
from collections.abc import Callable
from typing import Final


class Doorbell:
    """``ring`` from any thread; ``silence`` from the one that polls ``fileno``. Never blocks."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._write: Final = _writer(self._near)
        self._rung = False

    def fileno(self) -> int:
        """Readable while it is rung."""
        return self._far.fileno()

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._write()

    def silence(self) -> None:
        """What was put down before a ``ring`` that this undoes is to be looked for after it."""
        with contextlib.suppress(BlockingIOError):
            self._far.recv(64)
        self._rung = False


def _writer(near: socket.socket) -> Callable[[], object]:
    if sys.platform == "win32":  # a socket is no file there
        return lambda: near.send(b"\0")
    write = ctypes.PyDLL(None).write  # one that keeps the lock
    write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    write.restype = ctypes.c_ssize_t
    number = near.fileno()
    return lambda: write(number, b"\0", 1)
