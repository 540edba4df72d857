"""Runs the engine so that it cannot outlive the broker: ``python -m xlm_broker.child_guard MODULE ARGUMENTS…``.

On Linux the kernel kills this process when the broker's main thread ends,
however it ends. Asking for it here, in the child and before anything else is
imported, avoids code between fork and exec in a broker that has threads.
Elsewhere the engine ends when its link to the broker closes.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2), linux/prctl.h
PARENT_VARIABLE = "XLM_BROKER_PID"


def die_with_parent() -> None:
    """Ends this process at once if the broker is gone already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    expected = os.environ.get(PARENT_VARIABLE, "")
    if expected and os.getppid() != int(expected):
        os._exit(0)


def main() -> None:
    die_with_parent()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
