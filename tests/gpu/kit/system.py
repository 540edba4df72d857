"""What this machine is: card, driver, CUDA, link, CPU, tools. Missing tools give missing facts, not errors."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

CARD_FIELDS = (
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.used",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "clocks.max.sm",
    "power.limit",
)
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")


def output_of(*command: str, timeout_s: float = 20.0) -> str | None:
    """Standard output of a command; None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def card(index: int = 0) -> dict[str, str] | None:
    """The facts of one card as nvidia-smi tells them (memory in MiB, power in W), None without a card."""
    fields = ",".join(CARD_FIELDS)
    text = output_of("nvidia-smi", f"--id={index}", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    if not text:
        return None
    values = [value.strip() for value in text.splitlines()[0].split(",")]
    return dict(zip(CARD_FIELDS, values, strict=False))


def cuda_architecture(index: int = 0) -> str | None:
    """ "9.0" -> "90-real": machine code for this card alone, no PTX."""
    capability = (card(index) or {}).get("compute_cap", "")
    digits = capability.replace(".", "")
    return f"{digits}-real" if digits.isdigit() else None


def find_nvcc() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *CUDA_FOLDERS])
    return os.environ.get("CUDACXX") or shutil.which("nvcc", path=path)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def last_line(text: str | None) -> str | None:
    return text.splitlines()[-1] if text else None


def first_line(text: str | None) -> str | None:
    return text.splitlines()[0] if text else None


def facts() -> dict[str, Any]:
    nvcc = find_nvcc()
    return {
        "card": card(),
        "nvcc": last_line(output_of(nvcc, "--version")) if nvcc else None,
        "cpu": cpu_name(),
        "cpus": usable_cpus(),
        "memory_gib": memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cmake": first_line(output_of("cmake", "--version")),
        "compiler": first_line(output_of("c++", "--version")),
    }
