"""Threads step back and answer quickly: each for itself and for those it starts, whatever the system allows."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from xlm import _threads

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
linux = pytest.mark.skipif(sys.platform != "linux", reason="threads have a nice of their own on Linux alone")


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def slice_ns() -> int:
    """Of the calling thread, as the kernel says; 0: it does not say."""
    attributes = ctypes.create_string_buffer(_threads._SCHED_ATTR.size)
    number = SCHED_GETATTR.get(platform.machine(), -1)
    size = ctypes.c_uint(len(attributes))
    if ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(0), attributes, size, ctypes.c_uint(0)) != 0:
        return 0
    return int(_threads._SCHED_ATTR.unpack(attributes.raw)[5])


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@linux
def test_stepping_back_is_inherited_and_nobody_elses() -> None:
    before = nice()

    def compute() -> tuple[int, int]:
        _threads.step_back()
        return nice(), in_thread(nice)

    expected = min(19, before + _threads.COMPUTING_NICE)
    assert in_thread(compute) == (expected, expected)
    assert nice() == before


@linux
@pytest.mark.skipif(not slice_ns(), reason="this kernel knows no slices of threads (before 6.12)")
def test_who_answers_quickly_has_a_short_slice_until_it_computes() -> None:
    before_ns = slice_ns()  # of this thread, in which a test before may have run a whole broker

    def answer() -> tuple[int, int, int, int]:
        _threads._set_slice(0)
        usual_ns = slice_ns()
        _threads.answer_quickly()
        heirs_ns = in_thread(slice_ns)
        own_ns = slice_ns()
        _threads.step_back()
        return usual_ns, own_ns, heirs_ns, slice_ns()

    usual_ns, short_ns, heirs_ns, long_ns = in_thread(answer)
    assert short_ns == heirs_ns < usual_ns
    assert long_ns == usual_ns
    assert slice_ns() == before_ns


@linux
def test_a_policy_that_the_user_chose_stays() -> None:
    def idle() -> int:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _threads.answer_quickly()
        _threads.step_back()
        return os.sched_getscheduler(0)

    assert in_thread(idle) == os.SCHED_IDLE


def test_a_system_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise PermissionError

    for name in ("CDLL", "WinDLL"):
        monkeypatch.setattr(ctypes, name, refuse, raising=False)
    monkeypatch.setattr(os, "setpriority", refuse, raising=False)
    before = nice() if sys.platform == "linux" else 0
    in_thread(_threads.answer_quickly)
    in_thread(_threads.step_back)
    assert before == (nice() if sys.platform == "linux" else 0)


@pytest.fixture
def openmp_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "as it was")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


@linux
def test_openmp_threads_spin_briefly_before_they_sleep(openmp_environment: pytest.MonkeyPatch) -> None:
    _threads.share_cores()
    assert os.environ["OMP_WAIT_POLICY"] == "active"  # libgomp: also where a process has more threads than cores
    assert 0 < int(os.environ["GOMP_SPINCOUNT"]) < 10_000
    assert os.environ["KMP_BLOCKTIME"] == "0"


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_chose_for_openmp_stays(openmp_environment: pytest.MonkeyPatch, name: str) -> None:
    openmp_environment.setenv(name, "passive")
    before = dict(os.environ)
    _threads.share_cores()
    assert dict(os.environ) == before


def test_other_systems_openmp_threads_sleep(openmp_environment: pytest.MonkeyPatch) -> None:
    openmp_environment.setattr(sys, "platform", "win32")
    _threads.share_cores()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert "GOMP_SPINCOUNT" not in os.environ
