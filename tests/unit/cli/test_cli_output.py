"""Standard output that cannot be written is one line on standard error and exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
ENTRIES = {
    "xlm_broker": ["--help", "--version"],
    "xlm": ["--help", "--version", "plan --help", "plan --model demo --budget 64MiB --device sim --ctx 256"],
}


def run(entry: str, words: str, stdout: int) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from xlm_broker.cli import entry; sys.argv = ['x', *sys.argv[1:]]; entry.{entry}()"
    command = [sys.executable, "-c", code, *words.split()]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("entry", "words"), [(entry, words) for entry, all_ in ENTRIES.items() for words in all_])
def test_a_full_disk(entry: str, words: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run(entry, words, full)
    finally:
        os.close(full)
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


@pytest.mark.parametrize(("entry", "words"), [("xlm_broker", "--help"), ("xlm", "plan --help")])
def test_a_reader_that_has_left(entry: str, words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(entry, words, writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
