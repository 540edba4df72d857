"""Builds, runs the groups of checks in order of value inside a time budget, and writes JSON and summary.

Each group is a process of its own; its results are on disk line by line, so a crash costs no finding. Whatever
happens, also an interrupt or a failed build, the JSON is written and says what was not run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import system
from summary import render

from build import ROOT, Builder, BuildError, Libraries

NAME = "xlm-gpu-check"
UTC = datetime.timezone.utc  # noqa: UP017  (datetime.UTC is of Python 3.11; the kit runs on 3.10)
GRACE_S = 10.0  # a group past its bound gets that long to finish the check it is in
REPORT_S = 5.0  # kept for merging and writing


@dataclass(frozen=True)
class Group:
    name: str
    bound_s: float
    quick_s: float


# In order of value: what comes first is run even when the build took long.
GROUPS = (
    Group("environment", 20, 10),
    Group("lossless", 60, 30),
    Group("kv", 15, 10),
    Group("changes", 30, 20),
    Group("reclaim", 60, 20),
    Group("speed", 80, 20),
    Group("bandwidth", 25, 10),
)
Checks = list[dict[str, Any]]
VERDICTS = ("pass", "fail", "error", "note", "not_run")


def read_checks(path: Path) -> Checks:
    """The lines a group wrote; a last line cut by a crash is dropped."""
    checks = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            checks.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return checks


def ended_badly(code: int | None, log: Path) -> str | None:
    """Why a group did not end by itself; None when it did (1: it said so in its results)."""
    if code in (0, 1):
        return None
    why = "stopped: out of time"
    if code is not None:
        why = f"crashed: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    tail = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-6:]
    return why + (f"; last output: {' | '.join(tail)}" if tail else "")


class Driver:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out.resolve()
        self.begin = time.monotonic()
        self.end: float = self.begin + arguments.minutes * 60
        self.groups: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.failure: str | None = None
        self.started = datetime.datetime.now(UTC).isoformat(timespec="seconds")

    def left(self) -> float:
        return self.end - REPORT_S - time.monotonic()

    def build(self) -> Libraries:
        # Checks of the first four groups need about 90 s; a build that leaves less is stopped.
        end = self.end - (20.0 if self.arguments.quick else 90.0)
        builder = Builder(self.out, self.arguments.device, self.arguments.jobs, self.arguments.quick, end, self.steps)
        return builder.everything()

    def command(self, group: Group, libraries: Libraries, seconds: float, lines: Path) -> list[str]:
        values = {
            "device": self.arguments.device,
            "library": libraries.device,
            "models": self.out / "models",
            "out": lines,
            "seconds": f"{seconds:.1f}",
            "threads": self.arguments.jobs,
            "quick": int(self.arguments.quick),
        }
        return [str(libraries.runner), group.name, *(f"{key}={value}" for key, value in values.items())]

    def environment(self, libraries: Libraries) -> dict[str, str]:
        folders = [str(libraries.llama), str(libraries.native), os.environ.get("LD_LIBRARY_PATH", "")]
        # ggml starts a debugger at an abort where it finds one; that costs seconds and hides the message.
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)), "GGML_NO_BACKTRACE": "1"}

    def share_s(self, group: Group) -> float:
        """What a group may take of the whole, if there is so much left."""
        if self.arguments.no_group_limits:
            return self.left()
        return group.quick_s if self.arguments.quick else group.bound_s

    def run_group(self, group: Group, libraries: Libraries) -> None:
        bound = min(self.share_s(group), self.left() - GRACE_S)
        if bound < 3.0:
            return self.skip(group, "no time left")
        lines, log = self.out / "parts" / f"{group.name}.jsonl", self.out / "logs" / f"{group.name}.log"
        for folder in (lines.parent, log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        lines.unlink(missing_ok=True)
        begin = time.monotonic()
        with log.open("wb") as file:
            code = self.wait(self.command(group, libraries, bound, lines), libraries, file, bound + GRACE_S)
        self.add_group(group, bound, begin, read_checks(lines), ended_badly(code, log))

    def wait(self, command: list[str], libraries: Libraries, file: Any, timeout_s: float) -> int | None:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=self.environment(libraries))
        try:
            return process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def add_group(self, group: Group, bound: float, begin: float, checks: Checks, why: str | None) -> None:
        if why:
            checks.append({"group": group.name, "check": f"group {group.name}", "verdict": "error", "why": why})
        seconds = round(time.monotonic() - begin, 1)
        self.groups.append(
            {"group": group.name, "seconds": seconds, "bound_seconds": round(bound, 1), "checks": checks}
        )
        counts = ", ".join(f"{n} {name}" for name, n in count(checks).items() if n)
        print(f"  {group.name}: {counts} ({seconds:.0f} s)", flush=True)

    def skip(self, group: Group, why: str) -> None:
        check = {"group": group.name, "check": f"group {group.name}", "verdict": "not_run", "why": why}
        self.groups.append({"group": group.name, "seconds": 0.0, "bound_seconds": 0.0, "checks": [check]})

    def run(self) -> int:
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            libraries = self.build()
            for group in GROUPS:
                self.run_group(group, libraries)
        except (BuildError, OSError) as error:
            self.failure = str(error)
        except KeyboardInterrupt:
            self.failure = "interrupted"
        return self.write()

    def result(self) -> dict[str, Any]:
        done = {group["group"] for group in self.groups}
        for group in GROUPS:
            if group.name not in done:
                self.skip(group, "not reached")
        counts = count([check for group in self.groups for check in group["checks"]])
        bad = self.failure is not None or counts["fail"] + counts["error"] > 0
        return {
            "result": "failed" if bad else "passed" if counts["not_run"] == 0 else "passed, not complete",
            "counts": counts,
            "device": self.arguments.device,
            "quick": self.arguments.quick,
            "started": self.started,
            "seconds": round(time.monotonic() - self.begin, 1),
            "budget_seconds": self.arguments.minutes * 60,
            "failure": self.failure,
            "version": version(),
            "system": system.facts(),
            "build": self.steps,
            "groups": self.groups,
        }

    def write(self) -> int:
        result = self.result()
        text = render(result)
        (self.out / f"{NAME}.json").write_text(json.dumps(result, indent=1) + "\n")
        (self.out / f"{NAME}.md").write_text(text)
        print(f"{result['result']}: {self.out / NAME}.md")
        if self.failure:
            print(self.failure, file=sys.stderr)
        return 1 if result["result"] == "failed" else 0


def count(checks: Checks) -> dict[str, int]:
    return {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in VERDICTS}


def version() -> str:
    stamp = ROOT / "VERSION"
    return stamp.read_text().strip() if stamp.is_file() else "checkout"


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.sh", description="checks xlm on a card, the build included")
    parser.add_argument("--device", choices=("cuda", "sim", "vulkan"), default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check", help="default: build/gpu-check")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything (default 8)")
    parser.add_argument("--quick", action="store_true", help="small models, few repetitions, unoptimized runner")
    parser.add_argument("--no-group-limits", action="store_true", help="a group may take all the time that is left")
    parser.add_argument("--jobs", type=int, default=system.usable_cpus(), help="default: all CPUs")
    signal.signal(signal.SIGTERM, interrupt)  # a limit of the machine ends us: still write what was found
    return Driver(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
