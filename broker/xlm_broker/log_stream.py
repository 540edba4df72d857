"""Where log lines go. Whatever is wrong there (a full disk, a closed terminal, a pipe that nobody reads) loses lines.

A launcher that starts the broker with a pipe and never reads it fills that pipe within minutes; a write that waited
would hold up every order to release memory. So pipes, sockets and terminals are asked first whether they take more.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import sys
from typing import Final, TextIO

# What a pipe that says it is writable takes at once, and whole: POSIX.
_PIECE_BYTES: Final = getattr(select, "PIPE_BUF", 512)


class LogStream:
    """``write`` never blocks on POSIX, and never raises. Not thread-safe. The stream stays its owner's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fd = _that_may_block(stream)
        self._lost = 0  # lines, since the last one that was taken
        self._cut = False  # the last thing written is half a line

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            if self._fd is None:
                self._stream.write(text)
            else:
                self._offer(self._fd, text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def _offer(self, fd: int, text: str) -> None:
        note = json.dumps({"event": "log_lines_lost", "level": "warning", "count": self._lost}) + "\n"
        whole = ("\n" if self._cut else "") + (note if self._lost else "") + text
        data = whole.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), _PIECE_BYTES):
            if not _takes_more(fd):
                self._lost, self._cut = self._lost + 1, self._cut or start > 0
                return
            os.write(fd, data[start : start + _PIECE_BYTES])
        self._lost, self._cut = 0, False


def _that_may_block(stream: TextIO) -> int | None:
    """Its descriptor; None for a file, for what is none, and on Windows, where nobody can be asked."""
    if sys.platform == "win32":
        return None
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return fd if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None


def _takes_more(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
