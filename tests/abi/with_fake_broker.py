"""Runs a program beside a fake broker, which it finds through $XLM_ENDPOINT; ends with its status."""

from __future__ import annotations

import os
import subprocess
import sys

from xlm.testing import FakeBroker

LONG_S = 600.0  # only bounds a failure


def run(*command: str, **environment: str) -> int:
    with FakeBroker(answer="Greetings, traveller.") as broker:
        variables = {**os.environ, "XLM_ENDPOINT": broker.endpoint, **environment}
        return subprocess.run(command, env=variables, timeout=LONG_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
