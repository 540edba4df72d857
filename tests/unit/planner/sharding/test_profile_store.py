"""The profile file: what goes in comes out; what is missing, damaged or foreign is a typed error."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from xlm.errors import ProfileError
from xlm_broker.planner.sharding.profile import KernelPoint, LinkPoint, ProfileKey
from xlm_broker.profile_store import MAX_FILE_BYTES, ProfileWriter, check_profile, load_profile

KEY = ProfileKey("Some CPU", 8, "AVX2,FMA", "Some Card", "570.1", "0.25.3 abc")
KERNELS = [KernelPoint("cpu", "MUL_MAT", "Q4_0", (512, n, 0, 0), 1, 8, "idle", 100 + n) for n in (256, 512)]
LINKS = [LinkPoint("h2d", "pinned", 1 << 20, 0, 90_000), LinkPoint("h2d", "pinned", 1 << 20, 8, 99_000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "profile.sqlite"
    writer = ProfileWriter(path, KEY, quick=True)
    writer.add(KERNELS, LINKS)
    writer.set_meta(**{"note.threads": "8"})
    writer.finish()
    writer.close()
    return path


def test_there_and_back(path: Path) -> None:
    profile = load_profile(path)
    assert profile.key == KEY
    assert sorted(profile.kernels, key=lambda p: p.ns) == KERNELS
    assert sorted(profile.links, key=lambda p: p.ns) == LINKS
    assert (profile.quick, profile.complete, profile.notes) == (True, True, {"threads": "8"})


def test_an_interrupted_measurement_goes_on(path: Path) -> None:
    writer = ProfileWriter(path, KEY)
    assert len(writer.have_kernels()) == 2
    assert len(writer.have_links()) == 2
    writer.add([replace(KERNELS[0], ns=5)])  # measured again: replaces
    writer.close()
    assert {p.ns for p in load_profile(path).kernels} == {5, 612}


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(tmp_path / "none.sqlite")
    assert caught.value.code == "profile_missing"
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize("content", [b"not a database at all, just text that is long enough", b"SQLite format 3\0junk"])
def test_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.sqlite"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert caught.value.code == "profile_corrupt"


@pytest.mark.parametrize(
    "damage",
    ["UPDATE kernel SET ns = 'many'", "UPDATE link SET size_bytes = -5", "DELETE FROM meta WHERE key = 'key.cpu'",
     "UPDATE meta SET value = 'eight' WHERE key = 'key.n_cores'", "DROP TABLE link"],
)  # fmt: skip
def test_damaged_rows(path: Path, damage: str) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(damage)
    database.close()
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert caught.value.code == "profile_corrupt"


def test_torn_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert caught.value.code == "profile_corrupt"


def test_of_another_machine(path: Path) -> None:
    here = replace(KEY, driver="580.0", cpu="Other CPU")
    with pytest.raises(ProfileError, match=r"driver: 580\.0 here, 570\.1 in the profile") as caught:
        check_profile(load_profile(path), here)
    assert caught.value.code == "profile_stale"
    check_profile(load_profile(path), KEY)
    with pytest.raises(ProfileError):
        ProfileWriter(path, here)


def test_of_another_schema(path: Path) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    database.close()
    with pytest.raises(ProfileError, match="schema 99") as caught:
        load_profile(path)
    assert caught.value.code == "profile_stale"


def test_it_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    writer = ProfileWriter(path, KEY)
    many = [KernelPoint("cpu", "MUL_MAT", "Q4_0", (a, b, 0, 0), 1, 8, "idle", 9) for a in range(99) for b in range(99)]
    with pytest.raises(ProfileError, match="grow"):
        writer.add(many)
    writer.add(KERNELS)
    writer.close()
    assert path.stat().st_size <= MAX_FILE_BYTES
    assert len(load_profile(path).kernels) == 2
