"""The readable summary of one run: verdicts first, then figures, then what was not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Check = dict[str, Any]
PLAIN_KEYS = {"group", "check", "verdict"}


def checks_of(result: dict[str, Any]) -> Iterator[Check]:
    for group in result["groups"]:
        yield from group["checks"]


def figure(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {figure(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"{len(value)} rows"
    return str(value)


def details(check: Check) -> str:
    return "; ".join(f"{key} {figure(value)}" for key, value in check.items() if key not in PLAIN_KEYS)


def head(result: dict[str, Any]) -> Iterator[str]:
    facts, card = result["system"], result["system"].get("card")
    yield f"# xlm GPU check: {result['device']}"
    yield ""
    yield f"- result: **{result['result']}** ({', '.join(f'{n} {name}' for name, n in result['counts'].items())})"
    yield f"- took {result['seconds']:.0f} s of {result['budget_seconds']:.0f} s, {result['started']}"
    if card:
        link = f"PCIe gen {card['pcie.link.gen.max']} x{card['pcie.link.width.max']}"
        yield f"- card: {card['name']}, {card['memory.total']} MiB, compute capability {card['compute_cap']}, {link}"
        yield f"- driver {card['driver_version']}, nvcc: {facts['nvcc']}"
    yield f"- machine: {facts['cpu']}, {facts['cpus']} CPUs, {facts['memory_gib']} GiB, {facts['system']}"
    if result["device"] == "sim":
        yield "- the virtual GPU computes with the CPU: results are real, times say nothing about a card"
    if result["quick"]:
        yield "- quick run: small models and few repetitions; no figure here is worth quoting"
    yield ""


def broken(result: dict[str, Any]) -> Iterator[str]:
    bad = [check for check in checks_of(result) if check["verdict"] in ("fail", "error")]
    if result.get("failure"):
        yield f"**Could not run:** {result['failure']}"
        yield ""
    if bad:
        yield "## Failures"
        yield from (f"- {check['verdict'].upper()} {check['check']}: {details(check)}" for check in bad)
        yield ""


def passed(result: dict[str, Any]) -> Iterator[str]:
    yield "## Passed"
    yield from (f"- {check['check']}: {details(check)}" for check in checks_of(result) if check["verdict"] == "pass")
    yield ""


def is_speed(check: Check) -> bool:
    return check["check"].startswith("tokens/s: ") and "decode_tokens_s" in check


def speed_table(result: dict[str, Any]) -> Iterator[str]:
    rows = [check for check in checks_of(result) if is_speed(check)]
    if not rows:
        return
    yield "## Tokens per second"
    yield "| placement | decode | prefill | prompt |"
    yield "|---|---|---|---|"
    for row in rows:
        name = row["check"].removeprefix("tokens/s: ")
        yield f"| {name} | {row['decode_tokens_s']:.1f} | {row['prefill_tokens_s']:.0f} | {row['prompt_tokens']} |"
    yield ""


def copy_table(result: dict[str, Any]) -> Iterator[str]:
    for check in checks_of(result):
        if not check["check"].startswith("copies, ") or "rows" not in check:
            continue
        yield f"## {check['check'].capitalize()}"
        yield "| bytes | upload GB/s | download GB/s |"
        yield "|---|---|---|"
        yield from (f"| {r['bytes']:,} | {r['upload_gb_s']:.2f} | {r['download_gb_s']:.2f} |" for r in check["rows"])
        yield ""


def notes(result: dict[str, Any]) -> Iterator[str]:
    yield "## Noted"
    for check in checks_of(result):
        if check["verdict"] == "note" and "rows" not in check and not is_speed(check):
            yield f"- {check['check']}: {details(check)}"
    yield ""


def not_run(result: dict[str, Any]) -> Iterator[str]:
    missing = [check for check in checks_of(result) if check["verdict"] == "not_run"]
    yield "## Not run"
    yield from (f"- {check['check']}: {check.get('why', '')}" for check in missing)
    if not missing:
        yield "- nothing was left out"
    yield ""


def steps(result: dict[str, Any]) -> Iterator[str]:
    yield "## Time"
    yield from (f"- build {s['step']}: {s['seconds']} s{'' if s['ok'] else ', FAILED'}" for s in result["build"])
    yield from (f"- checks {g['group']}: {g['seconds']} s of {g['bound_seconds']} s" for g in result["groups"])


def render(result: dict[str, Any]) -> str:
    parts = (head, broken, passed, speed_table, copy_table, notes, not_run, steps)
    return "\n".join(line for part in parts for line in part(result)) + "\n"
