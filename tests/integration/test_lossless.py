"""Not one token changes, whatever the game does with its budget."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import pytest

import xlm
from tests.support.model import plain_llama, smollm_prompt
from tests.support.running_broker import N_THREADS, RunningBroker

SYSTEM = "You are Greta, a blacksmith."
QUESTION = "Tell me a long story about the sword you forged for the king, and the dragon it was made for."
N_TOKENS = 300
N_CHANGES = 1000


@pytest.fixture(scope="module")
def plain_tokens() -> list[int]:
    """Greedy answer of plain llama-cpp-python on the CPU to the same prompt."""
    with plain_llama(n_threads=N_THREADS) as llama:
        return llama.greedy(smollm_prompt(llama, SYSTEM, QUESTION), N_TOKENS)


def say(client: xlm.Client, text: str = QUESTION, system: str = SYSTEM, n: int = N_TOKENS) -> list[int]:
    with client.open_session(system=system) as npc:
        return list(npc.say(text, max_tokens=n, temperature=0.0).token_ids)


def random_budgets(total_bytes: int, n: int, seed: int) -> list[int]:
    """From all to zero and back, with every size between."""
    rng = random.Random(seed)
    fixed = [0, total_bytes, 1, total_bytes // 2]
    return [rng.choice(fixed) if rng.random() < 0.3 else rng.randrange(total_bytes) for _ in range(n)]


class Changer(threading.Thread):
    """The game: changes its cap as fast as it is acknowledged, and checks every acknowledgement."""

    def __init__(self, broker: RunningBroker, budgets: Sequence[int]) -> None:
        super().__init__()
        self.broker, self.budgets = broker, budgets
        self.done, self.violations = 0, list[str]()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.broker.connect("game") as game:
                for budget in self.budgets:
                    lease = game.set_budget(budget)
                    if lease.device_used_bytes > lease.granted_bytes or lease.granted_bytes > budget:
                        self.violations.append(f"asked {budget}: {lease}")
                    self.done += 1
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("budget", ["0", "16MiB", "48MiB", "96MiB", "512MiB"])
def test_every_fixed_budget_gives_the_tokens_of_plain_llama(
    broker: RunningBroker, plain_tokens: list[int], budget: str
) -> None:
    with broker.connect() as client:
        client.set_budget(budget)
        assert say(client, n=60) == plain_tokens[:60]


def test_a_thousand_budget_changes_change_no_token(broker: RunningBroker, plain_tokens: list[int]) -> None:
    with broker.connect("npc") as client:
        total = int(client.status().device["total_bytes"])
        changer = Changer(broker, random_budgets(total, N_CHANGES, seed=7))
        changer.start()
        answers = 0
        while changer.is_alive() or answers == 0:
            assert say(client) == plain_tokens
            answers += 1
        changer.join()
        assert changer.error is None
        assert (changer.done, changer.violations) == (N_CHANGES, [])
        assert client.status().device["over_budget_events"] == 0


def two_npcs(client: xlm.Client) -> list[list[int]]:
    """Two NPCs speak at once; the tokens of each."""
    with client.open_session(system=SYSTEM) as greta, client.open_session(system="You are Odo, a ferryman.") as odo:
        first = greta.say(QUESTION, max_tokens=150, temperature=0.0)
        second = odo.say("How deep is the river, and what lives in it?", max_tokens=150, temperature=0.0)
        return [list(first.token_ids), list(second.token_ids)]


def test_two_npcs_at_once_say_the_same_with_and_without_changes(broker: RunningBroker) -> None:
    with broker.connect("npcs") as client:
        client.set_budget("512MiB")
        calm = two_npcs(client)
        client.set_budget(None)
        total = int(client.status().device["total_bytes"])
        changer = Changer(broker, random_budgets(total, 300, seed=11))
        changer.start()
        storm = two_npcs(client)
        changer.join()
        assert changer.error is None
        assert changer.violations == []
        assert storm == calm
