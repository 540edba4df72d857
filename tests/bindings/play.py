"""Scenario programs in C# and C++, played line by line with a test."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.running_broker import wait_until

STAND_IN = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
folder = Path(words[words.index("--endpoint") + 1])
signal.signal(signal.SIGTERM, lambda *_: (folder.joinpath("ended").write_text("politely"), sys.exit(0)))
folder.joinpath("new").write_text(json.dumps([os.getpid(), words]))
folder.joinpath("new").rename(folder / "started")
while True: time.sleep(1)
"""


class Play:
    """A running scenario. It waits for nothing but its lines."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, self.process.stderr.read() if self.process.stderr else ""
        return text.rstrip("\n")

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def rest(self) -> list[str]:
        """All lines up to a good end."""
        out, errors = self.process.communicate()
        assert self.process.returncode == 0, out + errors
        lines = out.splitlines()
        assert lines[-1] == "end"
        return lines[:-1]

    def started(self, folder: Path) -> tuple[int, list[str]]:
        """Process id and words of the stand-in for a broker that the scenario starts."""
        assert self.line() == "started"
        wait_until((folder / "started").exists, "the stand-in runs")
        pid, words = json.loads((folder / "started").read_text())
        return pid, words


def expected_sentences(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    cut = [[part.replace("\\n", "\n").strip() for part in line.split("|")] for line in lines]
    return ["|".join(part for part in parts if part) for parts in cut]
