"""One broker per endpoint: an operating-system file lock held for the broker's whole life.

The kernel releases it however the process ends, so a ``kill -9`` leaves nothing
to clean up by hand. The file itself may stay behind; only the lock counts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
from pathlib import Path
from typing import IO

from xlm.errors import EndpointError
from xlm.protocol.endpoints import Endpoint
from xlm_broker.folders import runtime_folder

if sys.platform == "win32":
    import msvcrt

    # Locked far behind the content, so that other processes can still read who holds it.
    _LOCK_OFFSET = 1 << 30

    def try_lock(file: IO[str]) -> bool:
        """Whether it is ours now, until it is closed."""
        file.seek(_LOCK_OFFSET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(file: IO[str]) -> bool:
        """Whether it is ours now, until it is closed."""
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class EndpointLock:
    """Exclusive right to serve one endpoint. Not thread-safe; owns the open file while held."""

    def __init__(self, path: Path, endpoint: str) -> None:
        self._path = path
        self._endpoint = endpoint
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    @property
    def intact(self) -> bool:
        """Held, and the file is still where others look for it."""
        return self._file is not None and self._is_current(self._file)

    def acquire(self) -> None:
        """Takes the lock or raises EndpointError: ``endpoint_in_use`` (names the holder) or ``endpoint_forbidden``."""
        while self._file is None:
            file = self._open()
            if not try_lock(file):
                file.close()
                raise self._in_use()
            if self._is_current(file):
                self._file = file
            else:  # its last holder removed the file between our open and our lock
                file.close()
        try:
            self._write_holder(self._file)
        except OSError as error:
            self.release()
            raise EndpointError(
                f"cannot write the lock file {self._path}: {error.strerror}", code="endpoint_forbidden"
            ) from error

    def release(self) -> None:
        """Removes the file, if it is still ours, and gives the lock back; safe to call twice."""
        if self._file is None:
            return
        if sys.platform != "win32" and self.intact:  # there, an open file cannot be removed; the empty lock file stays
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._file.close()
        self._file = None

    def _open(self) -> IO[str]:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise EndpointError(
                f"cannot open the lock file {self._path}: {error.strerror}", code="endpoint_forbidden"
            ) from error
        return os.fdopen(descriptor, "r+", encoding="utf-8")

    def _is_current(self, file: IO[str]) -> bool:
        try:
            on_disk = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(on_disk, os.fstat(file.fileno()))

    def _write_holder(self, file: IO[str]) -> None:
        """Unbuffered: on a full disk nothing is left over that a later close would try to write again."""
        text = json.dumps({"pid": os.getpid(), "endpoint": self._endpoint}).encode()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        written = os.write(file.fileno(), text)
        if written < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file.fileno(), written)

    def _in_use(self) -> EndpointError:
        return EndpointError(f"another broker{self._holder()} already serves {self._endpoint}", code="endpoint_in_use")

    def _holder(self) -> str:
        try:
            pid = json.loads(self._path.read_text(encoding="utf-8"))["pid"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return f" (process {pid})"


def lock_path(endpoint: Endpoint) -> Path:
    """The lock file of an endpoint: beside the socket, or for tcp in the user's runtime folder."""
    if endpoint.path is not None:
        return endpoint.path.with_name(endpoint.path.name + ".lock")
    name = re.sub(r"[^0-9A-Za-z.]", "_", endpoint.host)
    return runtime_folder() / f"tcp-{name}-{endpoint.port or os.getpid()}.lock"
