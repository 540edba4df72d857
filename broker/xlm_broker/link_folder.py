"""The private folder of the engine's link: locked while its broker lives, swept away by a later one if it was killed.

The lock is the operating system's and not a process id: that would mean another
process in another container, or after a reboot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Final

from xlm.errors import EndpointError
from xlm_broker.folders import prepare_folder
from xlm_broker.lock import EndpointLock, try_lock

_LOCK: Final = "owner.lock"
_DEAD: Final = ".dead-"
# Whoever sweeps holds the lock of what it sweeps for a moment, and that may be the folder we are about to take.
_TRIES: Final = 100
_RETRY_S: Final = 0.01


class LinkFolder:
    """Not thread-safe. Owns folder and lock between ``take`` and ``remove``."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path: Final = path
        self._lock: Final = EndpointLock(path / _LOCK, owner)

    def take(self) -> None:
        """Makes the folder ours and empty of sockets, and removes those of dead brokers. EndpointError if it cannot."""
        if self._lock.intact:
            return
        self._lock.release()  # somebody, a cleaner of temporary folders perhaps, removed what it locked
        prepare_folder(self.path.parent)
        sweep(self.path.parent, but=self.path)
        self._acquire()
        for socket in self.path.glob("*.sock"):
            socket.unlink(missing_ok=True)

    def _acquire(self) -> None:
        for attempt in range(_TRIES):
            try:
                prepare_folder(self.path)
                return self._lock.acquire()
            except EndpointError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_RETRY_S)
        return None

    def remove(self) -> None:
        """Safe to call twice, and when nothing was taken."""
        if self._lock.intact:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def sweep(parent: Path, *, but: Path) -> None:
    """Removes the link folders there whose brokers are dead. What cannot be removed stays; never raises."""
    with contextlib.suppress(OSError):
        for folder in sorted(parent.glob("engine-*")):
            if folder != but and folder.is_dir() and not folder.is_symlink():
                _sweep_one(folder)


def _sweep_one(folder: Path) -> None:
    if _DEAD in folder.name:  # whoever swept it was killed over it
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError), (folder / _LOCK).open("r+", encoding="utf-8") as lock:
        if try_lock(lock):
            # First out of the way: a new broker may make its folder under the old name at any moment.
            dead = folder.with_name(f"{folder.name}{_DEAD}{os.getpid()}")
            folder.rename(dead)
            shutil.rmtree(dead, ignore_errors=True)
