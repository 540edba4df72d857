"""``python -m xlm_engine --link ENDPOINT``"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys

from xlm._threads import share_cores
from xlm_engine import logs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="xlm_engine", description="The engine child of xlm-broker; not for users.")
    parser.add_argument("--link", required=True, help="ZeroMQ endpoint that the broker bound a PAIR socket to")
    parser.add_argument("--parent-pid", type=int, default=os.getppid(), help="exit when this is not the parent")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    options = parser.parse_args(argv)
    logs.configure(options.log_level)
    sys.setswitchinterval(0.001)  # a budget change waits for the decode thread's Python at most that long
    faulthandler.enable()  # a crash in native code leaves the Python stack in the broker's log
    share_cores()
    from xlm_engine.engine import Engine  # imports llama.cpp, after logging is set up

    engine = Engine(options.link, options.parent_pid)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.stop())
    return engine.run()


if __name__ == "__main__":
    sys.exit(main())
