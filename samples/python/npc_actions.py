"""An NPC that acts: each answer is JSON the game can carry out, whatever the model would rather say.

    .venv/bin/xlm-broker --model demo --budget-from-game &
    .venv/bin/python samples/python/npc_actions.py [ENDPOINT]

The schema is turned into a grammar, so the model cannot leave it: no parsing of
prose, no retries. Only ``finish_reason`` needs a look: an answer cut off at
``max_tokens`` may be half a document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import xlm

PERSONA = (
    "You control Odo, a guard at the gate of Ironbrook. Decide what Odo does next. "
    "He lets traders in, refuses armed strangers, and attacks only when attacked."
)

ACTION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "action": {"enum": ["open_gate", "refuse", "attack", "wait"]},
        "mood": {"enum": ["calm", "wary", "angry"]},
        "says": {"type": "string", "maxLength": 60},
    },
    "required": ["action", "mood", "says"],
    "additionalProperties": False,
}

EVENTS = (
    "A trader with a cart full of apples asks to come in.",
    "A hooded man with a drawn sword walks up to the gate.",
    "The hooded man strikes at Odo.",
)


def decide(npc: xlm.Session, event: str) -> dict[str, Any] | None:
    """What the NPC does about an event; None where the answer was cut off."""
    reply = npc.say(event, json_schema=ACTION, max_tokens=128, temperature=0.4, repeat_penalty=1.1, seed=7)
    text = reply.text
    if reply.finish_reason != "stop":
        return None
    decided: dict[str, Any] = json.loads(text)
    return decided


def main(endpoint: str | None) -> None:
    """Three events at the gate."""
    with xlm.connect(endpoint, name="npc-actions") as client:
        client.set_budget(None)
        with client.open_session(system=PERSONA, overflow="shift") as npc:
            for event in EVENTS:
                print(event)
                decided = decide(npc, event) or {"action": "wait", "mood": "calm", "says": "… (cut off)"}
                print(f"  -> {decided['action']} ({decided['mood']}): {decided['says']}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
    except xlm.XlmError as error:
        sys.exit(f"{error}")
