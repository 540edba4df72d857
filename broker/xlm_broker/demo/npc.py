"""Two characters of the sample game, and the player who keeps asking them things.

The lines suit a very small model: each is a plain question about the character's
own world, since such a model takes up whatever it is told and repeats it.

Answers are greedy, so that a second run of the same lines can be compared token
by token. Several conversations may run at once on one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from xlm_broker.demo.record import Turn

if TYPE_CHECKING:
    import xlm


@dataclass(frozen=True, slots=True)
class Character:
    name: str
    trade: str
    persona: str
    lines: tuple[str, ...]  # what the player says to them, in turn
    pause_s: float  # how long the player takes to answer
    first_pause_s: float


GRETA = Character(
    name="Greta",
    trade="blacksmith",
    persona=(
        "You are Greta, the blacksmith of the mountain village of Ironbrook. "
        "A traveller visits your forge. Reply as Greta, in one short sentence."
    ),
    lines=(
        "Good morning, Greta! What are you making today?",
        "What metal makes a good blade?",
        "How do you keep the fire hot?",
        "Tell me about your village.",
        "What do people here eat in winter?",
        "A dragon lives on the peak. Are you afraid of it?",
        "Who taught you to forge?",
        "What is the best sword you ever made?",
        "Which shield would stop a dragon's fire?",
        "Thank you! What should I take with me on the road?",
    ),
    pause_s=0.9,
    first_pause_s=0.2,
)

ODO = Character(
    name="Odo",
    trade="ferryman",
    persona=(
        "You are Odo, an old ferryman on the grey river. "
        "A traveller sits in your boat. Reply as Odo, in one or two short sentences."
    ),
    lines=(
        "Good evening, Odo! How long have you rowed this boat?",
        "What can I see on the other side?",
        "Which fish live in the river?",
        "What do you do when a storm comes?",
        "Tell me about your strangest passenger.",
        "What do you like best about the river?",
        "What do you eat for supper?",
        "Is it dangerous to cross at night?",
        "What do you think about when you row?",
        "Farewell, Odo. Wish me luck!",
    ),
    pause_s=1.2,
    first_pause_s=0.7,
)

CHARACTERS = (GRETA, ODO)

# Greedy, so that two runs can be compared; a small model repeats itself without the penalty.
_GREEDY: Final[dict[str, Any]] = {"temperature": 0.0, "repeat_penalty": 1.15, "repeat_last_n": 256}


@dataclass(slots=True)
class Conversation:
    """Plays one character's lines into a session, over and over, until told to stop."""

    character: Character
    max_tokens: int
    now_s: Callable[[], float]
    turns: list[Turn]  # shared with the recorder
    stop: asyncio.Event
    pauses: bool = True
    on_text: Callable[[str, str], None] = field(default=lambda _name, _text: None)

    def questions(self) -> Iterator[tuple[int, str]]:
        return enumerate(itertools.cycle(self.character.lines))

    async def run(self, client: xlm.AsyncClient, limit: int | None = None) -> None:
        """Talks until ``stop`` is set or ``limit`` turns are over; an answer in progress is spoken to its end."""
        async with client.open_session(system=self.character.persona, overflow="shift") as session:
            await self._pause(self.character.first_pause_s)
            for index, line in self.questions():
                if self.stop.is_set() or index == limit:
                    return
                await self._turn(session, index, line)
                await self._pause(self.character.pause_s)

    async def _turn(self, session: Any, index: int, line: str) -> None:
        turn = Turn(self.character.name, index, self.now_s(), line)
        self.turns.append(turn)
        reply = session.say(line, max_tokens=self.max_tokens, **_GREEDY)
        async for piece in reply:
            self._heard(turn, piece, list(reply.token_ids))
        self._heard(turn, "", list(reply.token_ids))
        turn.ended_s, turn.finish_reason = self.now_s(), reply.finish_reason or ""
        turn.ttft_ms = reply.usage.ttft_ms

    def _heard(self, turn: Turn, piece: str, token_ids: list[int]) -> None:
        new = len(token_ids) - len(turn.token_ids)
        if new:
            turn.arrivals.append((self.now_s(), new))
        turn.token_ids = token_ids
        turn.text += piece
        self.on_text(turn.npc, piece)

    async def _pause(self, seconds: float) -> None:
        if not self.pauses:
            return
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except TimeoutError:
            return
