"""What libxlm costs a game's frame: calls on the game's thread, against the goals, with allocations counted.

tests/native/client_bench.cpp against a fake broker, built against the installed library.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.installed_xlm import ROOT, installed_xlm

NAMES = {
    "idle_poll": "`xlm_client_poll`, nothing there",
    "poll_one_token": "`xlm_client_poll`, one token",
    "set_budget": "`xlm_client_set_budget`",
    "frame": "`xlm_frame`",
    "say_image_lent": "`xlm_session_say` with a raw 1440p image, lent",
}


def measure() -> dict[str, Any]:
    """Medians and 99th percentiles of single calls, in ns; "clock" is what the clock itself costs."""
    native = ROOT / "tests/native"
    names = {"PYTHON": sys.executable, "SDK_FOLDER": ROOT / "sdk", "FAKE_BROKER": native / "fake_broker.py"}
    defines = [f'-DXLM_{key}="{value}"' for key, value in names.items()]
    xlm_here = installed_xlm()
    with tempfile.TemporaryDirectory(prefix="xlm-bench-") as folder:
        binary = xlm_here.compile(Path(folder) / "bench", [native / "client_bench.cpp"], *defines, "-O2", "-pthread")
        done = subprocess.run([binary], env=xlm_here.environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(result: dict[str, Any]) -> list[str]:
    """A Markdown table."""
    lines = ["| call | calls | p50 µs | p99 µs | allocations | goal (p50) | |", "|---|---|---|---|---|---|---|"]
    for key, name in NAMES.items():
        r = result[key]
        verdict = "met" if r["met"] else "**missed**"
        lines.append(
            f"| {name} | {r['calls']} | {r['p50_ns'] / 1e3:.2f} | {r['p99_ns'] / 1e3:.2f} | {r['allocations']} "
            f"| ≤ {r['goal_ns'] / 1e3:g} µs, none allocated | {verdict} |"
        )
    clock, copied = result["clock"], result["say_image_copied"]
    more = f"The clock itself, which is in all of them: {clock['p50_ns'] / 1e3:.2f} µs."
    milliseconds = f"{copied['p50_ns'] / 1e6:.2f} ms (p99 {copied['p99_ns'] / 1e6:.2f})"
    image = f"`xlm_session_say` with that image copied: {milliseconds}."
    return [*lines, "", f"{more} {image}"]


if __name__ == "__main__":
    print("\n".join(rows(measure())))
