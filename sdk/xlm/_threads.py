"""How the threads of broker, engine and SDK share the CPU with a game and with each other.

Two kinds: threads that compute for a long time step back behind everybody else, and
threads that only pass messages on are run as soon as something arrives. Without the
latter an order to release waits until whoever computes has had its turn: on Linux that is
a slice of 1 to 4 ms at each of the eight threads between a game and the device.

No call needs privileges, and none raises: where the system refuses, all stays as it was.
On Linux and macOS a call is for the calling thread and those it starts afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from typing import Any, Final

COMPUTING_NICE: Final = 5  # a third of the weight of an ordinary thread
_SLICE_NS: Final = 100_000  # the shortest that Linux takes
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}  # system call, by machine; the C library may not have it
_SCHED_OTHER: Final = 0
# struct sched_attr, first version: size, policy, flags, nice, priority, runtime, deadline, period
_SCHED_ATTR: Final = struct.Struct("=IIQiIQQQ")
# libgomp: rounds of a waiting loop before a thread sleeps, some 3 microseconds in all
_OPENMP_SPINS: Final = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "300"}
_KMP_SLEEPS: Final = {"KMP_BLOCKTIME": "0"}  # LLVM's runtime knows no such short wait, and "active" alone is for ever
_THREAD_PRIORITY_HIGHEST: Final = 2  # within the class of its process
_BELOW_NORMAL_PRIORITY_CLASS: Final = 0x4000
_QOS_USER_INITIATED: Final = 0x19
_QOS_UTILITY: Final = 0x11


def share_cores() -> None:
    """ggml's OpenMP threads wait for each other for microseconds and then sleep; unless the user chose otherwise.

    To be called before llama.cpp is loaded: OpenMP reads its environment then. Children inherit it.
    """
    if any(name in os.environ for name in _OPENMP_SPINS):
        return
    brief = {**_OPENMP_SPINS, **_KMP_SLEEPS, **os.environ}
    os.environ.update(brief if sys.platform == "linux" else {"OMP_WAIT_POLICY": "passive"})


def answer_quickly() -> None:
    """The calling thread passes messages on: when one comes, it runs before those that compute.

    It gets no more CPU time than its share. Linux: a short slice, which lets it preempt from kernel 6.12 on; before,
    this changes nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            _set_slice(_SLICE_NS)
        elif sys.platform == "win32":
            kernel = _kernel32()
            kernel.SetThreadPriority(kernel.GetCurrentThread(), _THREAD_PRIORITY_HIGHEST)
        elif sys.platform == "darwin":
            ctypes.CDLL(None).pthread_set_qos_class_self_np(_QOS_USER_INITIATED, 0)


def step_back() -> None:
    """The calling thread computes: a game's threads come first. To be called once.

    On Windows it is the whole process that steps back, since threads do not inherit there; those that
    ``answer_quickly`` stay as important as any of another process.
    """
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            _set_slice(0)
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + COMPUTING_NICE)
        elif sys.platform == "win32":
            kernel = _kernel32()
            kernel.SetPriorityClass(kernel.GetCurrentProcess(), _BELOW_NORMAL_PRIORITY_CLASS)
        elif sys.platform == "darwin":
            ctypes.CDLL(None).pthread_set_qos_class_self_np(_QOS_UTILITY, 0)


def _set_slice(slice_ns: int) -> None:
    """0: the system's own."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != _SCHED_OTHER:  # else the user chose, with chrt
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, _SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(0), attributes, ctypes.c_ulong(0))


def _kernel32() -> Any:
    kernel: Any = getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009  (only there is it an attribute)
    kernel.GetCurrentThread.restype = kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.SetThreadPriority.argtypes = (ctypes.c_void_p, ctypes.c_int)
    kernel.SetPriorityClass.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    return kernel
