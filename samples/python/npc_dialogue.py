"""Talk with a blacksmith. Start a broker first: .venv/bin/xlm-broker --model demo --budget-from-game

    .venv/bin/python samples/python/npc_dialogue.py [ENDPOINT]

A line such as ``/budget 64MiB`` plays the game that needs its memory back, in
mid-conversation; an empty line ends it.
"""

from __future__ import annotations

import sys

import xlm

PERSONA = (
    "You are Greta, a blacksmith in the mountain village of Ironbrook. You are proud, warm and short of words. "
    "Answer in one or two plain sentences."
)


def change_budget(client: xlm.Client, size: str) -> None:
    """Gives the model a new budget and shows what came of it."""
    try:
        lease = client.set_budget(None if size == "none" else size, deadline_ms=16)
    except xlm.BudgetError as error:
        print(f"  {error}")
        return
    granted, used = xlm.format_size(lease.granted_bytes), xlm.format_size(lease.used_bytes)
    verdict = "in time" if lease.deadline_met else "late"
    print(f"  budget {granted}, used {used}, released in {lease.release_ms:.1f} ms ({verdict} for a frame)")


def answer(npc: xlm.Session, line: str) -> None:
    """Prints the answer as it is spoken. Ctrl-C stops this answer alone."""
    print("Greta: ", end="", flush=True)
    try:
        for piece in npc.say(line, max_tokens=96, temperature=0.7):
            print(piece, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print(" …")
    except xlm.XlmError as error:
        print(f"({error})")


def main(endpoint: str | None) -> None:
    """One conversation."""
    with xlm.connect(endpoint, name="npc-dialogue") as client:
        change_budget(client, "none")
        with client.open_session(system=PERSONA, overflow="shift") as npc:
            while line := input("You:   ").strip():
                if line.startswith("/budget"):
                    change_budget(client, line.removeprefix("/budget").strip() or "none")
                else:
                    answer(npc, line)
                for notice in client.notices():
                    print(f"  [{notice.kind}] {notice.text}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
    except (EOFError, KeyboardInterrupt):
        print()
    except xlm.XlmError as error:
        sys.exit(f"{error}")
