"""The parent's side: what it stores, and what it survives. The children are small scripts that speak the protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from xlm.errors import DeviceError, EngineError, ProfileError
from xlm.protocol.link import DeviceConfig
from xlm_broker.cli.profile import _duration, plain_report, rates, remarks
from xlm_broker.planner.sharding.profile import KernelPoint, LinkPoint, MachineProfile, ProfileKey
from xlm_broker.profile_store import load_profile
from xlm_broker.profiler import MAX_CRASHES, Outcome, Progress, Wanted, identify, measure

KEY = ProfileKey("cpu", 2, "AVX2", "", "", "1 (x)")
HEAD = """
import json, os, sys
request = json.loads(sys.stdin.readline())
def say(t, **values):
    print(json.dumps({"t": t, **values}), flush=True)
def point(op, ns=5, tokens=1):
    kernel = dict(device="cpu", op=op, type="F32", shape=[1, 0, 0, 0], tokens=tokens, threads=1, load="idle", ns=ns)
    say("points", kernels=[kernel], links=[])
def identity(ggml="1 (x)"):
    say("identity", cpu="cpu", n_cores=2, isa="AVX2", gpu="", driver="", ggml=ggml)
"""
USUAL = """
identity()
known = json.loads(sys.stdin.readline())
for op in ("ADD", "MUL", "SILU"):
    if op in request["skip"] or op in [kernel[1] for kernel in known["kernels"]]:
        continue
    say("begin", task=op)
    say("progress", done=0, total=3, left_s=1.0, what=op)
    if op == "MUL" and os.environ.get("MUL_DIES"):
        print("something about MUL", file=sys.stderr)
        os.abort()
    point(op)
say("note", name="x", text="y" * 1000)
say("done", measured=3, left_out=int(os.environ.get("LEFT_OUT", "0")))
"""


def child(tmp_path: Path, body: str) -> tuple[str, ...]:
    script = tmp_path / "child.py"
    script.write_text(HEAD + body, encoding="utf-8")
    return (sys.executable, str(script))


def run(tmp_path: Path, body: str, *, quick: bool = False, fresh: bool = False) -> Outcome:
    wanted = Wanted(device=DeviceConfig(), quick=quick, fresh=fresh)
    return measure(tmp_path / "p.sqlite", wanted, lambda _news: None, child(tmp_path, body))


def ops(tmp_path: Path) -> set[str]:
    return {point.op for point in load_profile(tmp_path / "p.sqlite").kernels}


def test_points_and_notes_are_stored(tmp_path: Path) -> None:
    outcome = run(tmp_path, USUAL)
    found = load_profile(tmp_path / "p.sqlite")
    assert (found.key, found.complete, found.quick) == (KEY, True, False)
    assert ops(tmp_path) == {"ADD", "MUL", "SILU"}
    assert outcome.measured == 3
    assert 0 < len(found.notes["x"]) <= 200
    assert outcome.to_json(found)["kernels"] == 3


def test_a_point_of_several_passes_counts_once_and_the_last_is_kept(tmp_path: Path) -> None:
    body = USUAL.replace('say("note"', 'point("ADD", ns=4)\npoint("ADD", ns=3)\nsay("note"')
    assert run(tmp_path, body).measured == 3
    assert {p.ns for p in load_profile(tmp_path / "p.sqlite").kernels if p.op == "ADD"} == {3}


def test_a_second_run_measures_nothing_again(tmp_path: Path) -> None:
    run(tmp_path, USUAL)
    assert run(tmp_path, USUAL).measured == 0


def test_what_kills_the_child_is_left_out_and_the_rest_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUL_DIES", "1")
    outcome = run(tmp_path, USUAL)
    assert outcome.skipped == ["MUL"]
    assert ops(tmp_path) == {"ADD", "SILU"}
    note = load_profile(tmp_path / "p.sqlite").notes["crashed.MUL"]
    assert "something about MUL" in note


def test_a_child_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    body = "identity()\nsys.stdin.readline()\nsay('begin', task='t%d' % len(request['skip']))\nos.abort()\n"
    with pytest.raises(EngineError, match=f"died {MAX_CRASHES + 1} times"):
        run(tmp_path, body)


@pytest.mark.parametrize("body", ["os.abort()", "sys.exit(0)", "identity()\nsys.exit(1)"])
def test_a_child_that_dies_before_it_begins_is_an_error(tmp_path: Path, body: str) -> None:
    with pytest.raises(EngineError, match="ended with"):
        run(tmp_path, body)


@pytest.mark.parametrize("body", ["print('hello', flush=True)", "say('nonsense')", "point('ADD')"])
def test_a_child_that_talks_nonsense_is_an_error(tmp_path: Path, body: str) -> None:
    with pytest.raises(EngineError):
        run(tmp_path, body)


def test_a_typed_error_of_the_child_is_raised_as_it_is(tmp_path: Path) -> None:
    body = "say('failed', code='device_not_found', message='no such card', hint='buy one')"
    with pytest.raises(DeviceError) as error:
        run(tmp_path, body)
    assert (error.value.message, error.value.hint) == ("no such card", "buy one")


def test_points_left_out_for_time_leave_the_profile_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFT_OUT", "7")
    outcome = run(tmp_path, USUAL, quick=True)
    assert outcome.left_out == 7
    assert not load_profile(tmp_path / "p.sqlite").complete
    assert any("7 points" in line for line in remarks(outcome, load_profile(tmp_path / "p.sqlite")))
    monkeypatch.delenv("LEFT_OUT")
    run(tmp_path, USUAL, quick=True)
    assert load_profile(tmp_path / "p.sqlite").complete


def test_a_full_run_measures_a_quick_profile_anew(tmp_path: Path) -> None:
    run(tmp_path, USUAL, quick=True)
    assert load_profile(tmp_path / "p.sqlite").quick
    assert run(tmp_path, USUAL).measured == 3
    full = load_profile(tmp_path / "p.sqlite")
    assert (full.quick, full.complete) == (False, True)
    assert run(tmp_path, USUAL, quick=True).measured == 0
    assert not load_profile(tmp_path / "p.sqlite").quick


def test_a_profile_of_another_ggml_is_named_set_aside_and_replaced(tmp_path: Path) -> None:
    run(tmp_path, USUAL.replace("identity()", "identity('0 (old)')"))
    outcome = run(tmp_path, USUAL)
    assert "ggml: 1 (x) here, 0 (old) in the profile" in outcome.replaced
    assert load_profile(tmp_path / "p.sqlite.old").key.ggml == "0 (old)"
    assert any("set the old profile aside" in line for line in remarks(outcome, load_profile(outcome.path)))


def test_a_file_that_is_no_profile_is_left_alone_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "p.sqlite").write_text("my thesis", encoding="utf-8")
    with pytest.raises(ProfileError) as error:
        run(tmp_path, USUAL)
    assert error.value.code == "profile_corrupt"
    assert "--fresh" in error.value.hint
    assert (tmp_path / "p.sqlite").read_text(encoding="utf-8") == "my thesis"
    run(tmp_path, USUAL, fresh=True)
    assert ops(tmp_path) == {"ADD", "MUL", "SILU"}
    assert (tmp_path / "p.sqlite.old").read_text(encoding="utf-8") == "my thesis"


def test_identify(tmp_path: Path) -> None:
    body = "assert request['identify_only']\nidentity()\n"
    assert identify(DeviceConfig(), child(tmp_path, body)) == KEY
    with pytest.raises(EngineError):
        identify(DeviceConfig(), child(tmp_path, "os.abort()"))


# -- what a person is shown


def test_plain_progress_is_a_line_for_each_tenth() -> None:
    lines: list[str] = []
    report = plain_report(lines.append)
    for done in range(100):
        report(Progress(done, 100, 100.0 - done, f"task {done}"))
    assert len(lines) == 10
    assert lines[0] == "0/100, about 1 min 40 s left: task 0"
    assert lines[1] == "10/100, about 1 min 30 s left: task 10"


def test_durations() -> None:
    assert _duration(-1) == "0 s"
    assert _duration(59.4) == "59 s"
    assert _duration(61) == "1 min 1 s"


def test_rates_are_bytes_and_flops_a_second() -> None:
    def product(tokens: int, load: str, ns: int) -> KernelPoint:
        return KernelPoint("cpu", "MUL_MAT", "F16", (1000, 1000, 0, 0), tokens, 2, load, ns)  # type: ignore[arg-type]

    found = MachineProfile(
        KEY,
        (product(1, "idle", 200_000), product(64, "idle", 1_280_000), product(1, "h2d", 300_000)),
        (LinkPoint("h2d", "pinned", 1 << 20, 0, 1 << 16), LinkPoint("h2d", "pinned", 1 << 24, 0, 1 << 20)),
    )
    products, _, links = rates(found).renderables
    cells = [list(column.cells) for column in products.columns]  # type: ignore[union-attr]
    assert [column[0] for column in cells] == ["cpu F16, 2 threads", "10.0 GB/s", "100 Gflop/s", "1.50 x the time"]
    link_cells = [list(column.cells) for column in links.columns]  # type: ignore[union-attr]
    assert link_cells == [["h2d pinned, CPU idle"], ["16 MiB"], ["16.0 GB/s"]]


def test_a_busy_machine_is_remarked(tmp_path: Path) -> None:
    outcome = Outcome(path=tmp_path / "p", key=KEY, skipped=["cpu ADD"])
    lines = list(remarks(outcome, MachineProfile(KEY, notes={"others_busy_percent": "80"})))
    assert any("80 %" in line for line in lines)
    assert any("cpu ADD" in line for line in lines)
    assert (
        list(remarks(Outcome(path=tmp_path / "p", key=KEY), MachineProfile(KEY, notes={"others_busy_percent": "?"})))
        == []
    )
