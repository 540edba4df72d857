"""Whether a process has ended, without a moment between two looks."""

from __future__ import annotations

import psutil


def ended(process: psutil.Process | int) -> bool:
    """Also one that only waits to be collected: by its parent, or by whoever takes over orphans here."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return not found.is_running() or found.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
