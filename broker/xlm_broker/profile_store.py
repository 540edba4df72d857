"""The profile file: an SQLite database that holds what was measured on one machine.

Schema (``SCHEMA_VERSION`` 1)

    meta(key, value)      schema, quick, complete, the six fields of ProfileKey as key.cpu ..., free notes as note.*
    name(id, text)        strings used by the other tables, stored once
    kernel(...)           one row a measured kernel: KernelPoint, names by id
    link(...)             one row a measured transfer: LinkPoint

A row takes about 45 bytes, so that ``MAX_FILE_BYTES`` hold some 5 500; more are refused.
Each ``add`` is one transaction, so that an interrupted measurement keeps what it had and goes on from there.
Not safe to share between threads; two processes may read, one may write.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import platformdirs

from xlm.errors import ProfileError
from xlm_broker.planner.sharding.profile import KernelPoint, LinkPoint, MachineProfile, ProfileKey

SCHEMA_VERSION: Final = 1
MAX_FILE_BYTES: Final = 256 << 10
PAGE_BYTES: Final = 4096

_SCHEMA: Final = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE name(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE kernel(device INT, op INT, type INT, d0 INT, d1 INT, d2 INT, d3 INT, tokens INT, threads INT, load INT,
    ns INT NOT NULL CHECK(ns > 0),
    PRIMARY KEY(device, op, type, d0, d1, d2, d3, tokens, threads, load)) WITHOUT ROWID;
CREATE TABLE link(direction INT, memory INT, size_bytes INT, cpu_threads INT, ns INT NOT NULL CHECK(ns > 0),
    PRIMARY KEY(direction, memory, size_bytes, cpu_threads)) WITHOUT ROWID;
"""


def default_path() -> Path:
    """Where `xlm profile` writes and the broker looks. Creates nothing."""
    return platformdirs.user_cache_path("xlm") / "profile.sqlite"


def load_profile(path: Path) -> MachineProfile:
    """The whole profile. ProfileError profile_missing or profile_corrupt; never creates the file."""
    if not path.is_file():
        raise ProfileError(f"there is no profile at {path}", code="profile_missing")
    with _opened(path, write=False) as database:
        return _read(database)


def check_profile(profile: MachineProfile, here: ProfileKey) -> None:
    """ProfileError profile_stale that names every difference between this machine and the measured one."""
    differences = here.differences(profile.key)
    if differences:
        raise ProfileError("the profile is of another machine: " + "; ".join(differences), code="profile_stale")


class ProfileWriter:
    """Adds points to a profile file; makes it where there is none. Resumable: ``have_kernels`` says what is there."""

    def __init__(self, path: Path, key: ProfileKey, *, quick: bool = False) -> None:
        """ProfileError profile_stale if the file is another machine's, profile_corrupt if it is no profile."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.is_file() or path.stat().st_size == 0
        self._path: Final = path
        self._database: Final = _connect(path, write=True)
        self._names: dict[str, int] = {}
        with _typed(path):
            if new:
                self._create(key, quick)
            _check_schema(self._database, path)
            check_profile(MachineProfile(_key(_meta(self._database))), key)
            self._names = self._stored_names()

    def _create(self, key: ProfileKey, quick: bool) -> None:
        self._database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        self._database.executescript(_SCHEMA)
        values = {f"key.{f.name}": str(getattr(key, f.name)) for f in fields(key)}
        self.set_meta(schema=str(SCHEMA_VERSION), quick=str(int(quick)), complete="0", **values)

    def set_meta(self, **values: str) -> None:
        with _typed(self._path), self._database:
            self._database.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", values.items())

    def have_kernels(self) -> set[tuple[object, ...]]:
        """The identity of every stored kernel: (device, op, type, shape, tokens, threads, load)."""
        return {(p.device, p.op, p.type, p.shape, p.tokens, p.threads, p.load) for p in _kernels(self._database)}

    def have_links(self) -> set[tuple[object, ...]]:
        return {(p.direction, p.memory, p.size_bytes, p.cpu_threads) for p in _links(self._database)}

    def add(self, kernels: Iterable[KernelPoint] = (), links: Iterable[LinkPoint] = ()) -> None:
        """Stores points in one transaction, replacing those of the same identity."""
        try:
            self._add(kernels, links)
        except BaseException:
            self._names = self._stored_names()  # those of the transaction were rolled back with it
            raise

    def _stored_names(self) -> dict[str, int]:
        return {text: id_ for id_, text in self._database.execute("SELECT id, text FROM name")}

    def _add(self, kernels: Iterable[KernelPoint], links: Iterable[LinkPoint]) -> None:
        with _typed(self._path), self._database:
            self._database.executemany(
                f"INSERT OR REPLACE INTO kernel VALUES({', '.join('?' * 11)})", [self._kernel_row(p) for p in kernels]
            )
            self._database.executemany("INSERT OR REPLACE INTO link VALUES(?, ?, ?, ?, ?)", map(self._link_row, links))
            if self._size_bytes() > MAX_FILE_BYTES:
                raise ProfileError(f"the profile would grow beyond {MAX_FILE_BYTES} bytes", code="profile_corrupt")

    def finish(self) -> None:
        """Marks the profile complete and packs the file."""
        self.set_meta(complete="1")
        with _typed(self._path):
            self._database.execute("VACUUM")

    def close(self) -> None:
        self._database.close()

    def _size_bytes(self) -> int:
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        return int(pages) * PAGE_BYTES

    def _id(self, text: str) -> int:
        if text not in self._names:
            cursor = self._database.execute("INSERT INTO name(text) VALUES(?)", (text,))
            self._names[text] = int(cursor.lastrowid or 0)
        return self._names[text]

    def _kernel_row(self, p: KernelPoint) -> tuple[int, ...]:
        head = (self._id(p.device), self._id(p.op), self._id(p.type))
        return (*head, *p.shape, p.tokens, p.threads, self._id(p.load), p.ns)

    def _link_row(self, p: LinkPoint) -> tuple[int, ...]:
        return (self._id(p.direction), self._id(p.memory), p.size_bytes, p.cpu_threads, p.ns)


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    """Whatever SQLite or a wrong value raises is a damaged profile to the caller."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise ProfileError(f"the profile {path} cannot be used: {error}", code="profile_corrupt") from error


def _connect(path: Path, *, write: bool) -> sqlite3.Connection:
    with _typed(path):
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}", uri=True, timeout=5.0)


@contextlib.contextmanager
def _opened(path: Path, *, write: bool) -> Iterator[sqlite3.Connection]:
    database = _connect(path, write=write)
    try:
        with _typed(path):
            _check_schema(database, path)
            yield database
    finally:
        database.close()


def _check_schema(database: sqlite3.Connection, path: Path) -> None:
    found = _meta(database).get("schema")
    if found != str(SCHEMA_VERSION):
        raise ProfileError(
            f"the profile {path} has schema {found}, this release reads {SCHEMA_VERSION}", code="profile_stale"
        )


def _read(database: sqlite3.Connection) -> MachineProfile:
    meta = _meta(database)
    notes = {key.removeprefix("note."): value for key, value in meta.items() if key.startswith("note.")}
    return MachineProfile(
        key=_key(meta),
        kernels=tuple(_kernels(database)),
        links=tuple(_links(database)),
        quick=meta.get("quick") == "1",
        complete=meta.get("complete") == "1",
        notes=notes,
    )


def _meta(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT key, value FROM meta"))


def _key(meta: dict[str, str]) -> ProfileKey:
    values: dict[str, Any] = {f.name: meta[f"key.{f.name}"] for f in fields(ProfileKey)}
    values["n_cores"] = int(values["n_cores"])
    return ProfileKey(**values)


def _kernels(database: sqlite3.Connection) -> Iterator[KernelPoint]:
    rows = database.execute(
        "SELECT d.text, o.text, t.text, d0, d1, d2, d3, tokens, threads, l.text, ns FROM kernel"
        " JOIN name d ON d.id = device JOIN name o ON o.id = op JOIN name t ON t.id = type JOIN name l ON l.id = load"
    )
    for device, op, type_, d0, d1, d2, d3, tokens, threads, load, ns in rows:
        numbers = _whole((d0, d1, d2, d3, tokens, threads, ns))
        yield KernelPoint(device, op, type_, numbers[:4], numbers[4], numbers[5], load, numbers[6])  # type: ignore[arg-type]


def _links(database: sqlite3.Connection) -> Iterator[LinkPoint]:
    rows = database.execute(
        "SELECT d.text, m.text, size_bytes, cpu_threads, ns FROM link"
        " JOIN name d ON d.id = direction JOIN name m ON m.id = memory"
    )
    for direction, memory, size_bytes, cpu_threads, ns in rows:
        yield LinkPoint(direction, memory, *_whole((size_bytes, cpu_threads, ns)))


def _whole(values: tuple[object, ...]) -> tuple[int, ...]:
    """SQLite stores what it is given, whatever the column says: anything but counts is damage."""
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise ValueError(f"not all whole numbers: {values}")
    return tuple(int(value) for value in values if isinstance(value, int))
