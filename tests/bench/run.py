"""Measure everything and rewrite docs/benchmarks.md (and build/bench.json).

usage: python -m tests.bench.run [--quick] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.bench import (
    against_stock,
    client_calls,
    host_memory,
    overlap,
    pacing,
    prediction,
    reclaim,
    throughput,
    vision,
    vision_picture,
    vision_time,
)

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    *("reclaim", "throughput", "host_memory", "pacing", "client", "overlap"),
    *("experts", "stock", "vision", "vision_time", "prediction"),
)
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def machine() -> str:
    cpu = platform.processor() or "unknown CPU"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    memory = psutil.virtual_memory().total / 2**30
    return f"{cpu}, {psutil.cpu_count(logical=True)} cores, {memory:.0f} GiB, {platform.system()}; virtual GPU (exact)"


def verdict(ok: bool) -> str:
    return "met" if ok else "**missed**"


def throughput_rows(r: dict[str, Any]) -> list[str]:
    rows = [
        "| device | tokens/s, SDK → broker → engine | bare llama.cpp loop | pairs | ratio, median (min, max) "
        "| of all pairs | CPUs taken by others | goal | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in r.values():
        rows.append(
            f"| {one['title']} | {one['xlm_tokens_per_s']:.1f} | {one['bare_tokens_per_s']:.1f} "
            f"| {one['quiet_rounds']} of {one['rounds']} | {one['ratio_median']:.3f} ({one['ratio_min']:.3f}, "
            f"{one['ratio_max']:.3f}) | {one['ratio_median_of_all']:.3f} | {one['others_cpus']:.2f} | ≥ 0.95 "
            f"| {verdict(one['ratio_median'] >= 0.95)} |"
        )
    return rows


def reclaim_rows(result: dict[str, Any]) -> list[str]:
    rows = [
        "| while | n | p50 ms | p99 ms | max ms | broker's p99 ms | engine's p99 ms | longest sub-layer ms "
        "| freed MiB (mean) | over the grant | CPUs taken by others | goal | |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for phase, r in result.items():
        goal = ("p99 ≤ 16.7 ms", verdict(r["client_p99_ms"] <= 16.7)) if phase == "decode" else ("", "")
        rows.append(
            f"| {phase} | {r['n']} | {r['client_p50_ms']:.2f} | {r['client_p99_ms']:.2f} | {r['client_max_ms']:.2f} "
            f"| {r['broker_p99_ms']:.2f} | {r['engine_p99_ms']:.2f} | {r['longest_sublayer_ms']:.2f} "
            f"| {r['mean_freed_mib']:.0f} | {r['over_grant']} | {r['others_cpus']:.2f} | {goal[0]} | {goal[1]} |"
        )
    return rows


def memory_rows(r: dict[str, Any]) -> list[str]:
    return [
        "| broker + engine MiB | model file | KV | over file and KV | goal | |",
        "|---|---|---|---|---|---|",
        f"| {r['used_mib']:.0f} | {r['model_file_mib']:.0f} | {r['kv_mib']:.0f} | {r['over_file_and_kv_mib']:.0f} "
        f"| ≤ 300 | {verdict(r['over_file_and_kv_mib'] <= 300)} |",
    ]


def experts_apart(quick: bool) -> dict[str, Any]:
    """In a process of its own: a process opens the cache device once."""
    path = ROOT / "build/bench/experts.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "tests.bench.experts", "--json", str(path), *(["--quick"] if quick else [])]
    subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return dict(json.loads(path.read_text()))


def document(results: dict[str, Any]) -> list[str]:
    lines = [f"Machine: {results['machine']}. Measured {results['date']} with `make bench`.", ""]
    titles = {
        "reclaim": ("Reclaim: request → released → acknowledged, seen by the client", reclaim_rows),
        "throughput": ("Throughput, everything resident", throughput_rows),
        "host_memory": ("Host memory", memory_rows),
        "pacing": ("Frame times beside generation, by frame feedback", pacing.rows),
        "client": ("Calls of libxlm on the game's thread", client_calls.rows),
        "overlap": ("Copies beside computing (modelled)", lambda result: overlap.rows(result["rows"])),
        "experts": ("Experts one by one: traffic by number of slots", lambda result: result["table"]),
        "stock": ("Against stock llama.cpp (modelled cards)", against_stock.rows),
        "vision": ("Images: device memory of a request, small Qwen2.5-VL-style model", vision.rows),
        "vision_time": ("Images: from picture to answer, against stock (modelled card)", vision_time.rows),
        "prediction": ("Predicted against measured step times", prediction.table),
    }
    for name, (title, rows) in titles.items():
        if name in results:
            lines += [f"### {title}", "", *rows(results[name]), ""]
    return lines


def rewrite(path: Path, lines: list[str]) -> None:
    text = path.read_text() if path.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"{END}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; does not touch docs/")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "reclaim": lambda: reclaim.measure(20 if options.quick else 200),
        "throughput": lambda: throughput.measure(3 if options.quick else 16),
        "host_memory": host_memory.measure,
        "pacing": lambda: pacing.measure(options.quick),
        "client": client_calls.measure,
        "overlap": lambda: {"rows": overlap.measured(options.quick)},
        "experts": lambda: experts_apart(options.quick),
        "stock": lambda: against_stock.measure(options.quick),
        "vision": lambda: vision.measure(options.quick),
        "vision_time": lambda: vision_time.measure(options.quick),
        "prediction": lambda: prediction.measured(options.quick),
    }
    results: dict[str, Any] = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    for name, part in parts.items():
        if options.only in (None, name):
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            results[name] = part()
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build/bench.json").write_text(json.dumps(results, indent=1))
    if "vision" in results and not options.quick:
        vision_picture.draw(results["vision"], ROOT / "docs/vision-peak.png")
    lines = document(results)
    if not options.quick and "pacing" in results:
        pacing.plot(results["pacing"], ROOT / "docs/frame-pacing.png")
    if not options.quick and not options.only:
        rewrite(ROOT / "docs/benchmarks.md", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
