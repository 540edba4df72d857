"""The asynchronous client over real sockets, against the fake broker."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import xlm
from xlm.protocol import messages
from xlm.testing import FakeBroker

from .conftest import ANSWER, LONG


@pytest_asyncio.fixture
async def client(broker: FakeBroker) -> AsyncIterator[xlm.AsyncClient]:
    async with xlm.aconnect(broker.endpoint, name="tavern", timeout=LONG) as client:
        yield client


async def test_connect_by_await_and_by_with(broker: FakeBroker) -> None:
    client = await xlm.aconnect(broker.endpoint, timeout=LONG)
    assert client.connected
    await client.close()
    await client.close()
    with pytest.raises(xlm.ProtocolError, match="closed"):
        await client.status()
    async with xlm.AsyncClient(broker.endpoint, timeout=LONG) as other:
        assert other.connected
    await asyncio.to_thread(broker.wait_for, messages.Goodbye, 2)


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(xlm.BrokerError, match="xlm-broker --model demo --budget-from-game"):
        await xlm.aconnect(f"ipc://{tmp_path}/none.sock", timeout=0.1)


async def test_budgets(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    lease = await client.set_budget("96MiB", deadline_ms=16)
    assert (lease.granted_bytes, lease.deadline_met) == (96 << 20, True)
    assert (await client.reserve("200MiB")).granted_bytes == 56 << 20
    with pytest.raises(xlm.BudgetError) as caught:
        await client.set_budget(1, require="device")
    assert caught.value.minimum_bytes == broker.minimum_bytes
    with pytest.raises(xlm.BudgetError):
        await client.set_budget("-1MiB")


async def test_a_ticket(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    broker.freeze()
    ticket = client.set_budget_nowait("32MiB")
    assert not ticket.done()
    with pytest.raises(xlm.BrokerError):
        await ticket.result(timeout=0.01)
    broker.freeze(False)
    assert (await ticket).granted_bytes == 32 << 20
    assert ticket.done()


async def test_an_answer(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    async with client.open_session(system="You are Greta.") as npc:
        broker.hold()
        reply = npc.say("Can you repair my sword?", temperature=0.0)
        assert (reply.finish_reason, reply.text, reply.done) == ("", "", False)
        broker.release()
        pieces = [piece async for piece in reply]
        assert "".join(pieces) == reply.text == ANSWER
        assert len(reply.token_ids) == reply.usage.completion_tokens == len(pieces)
        assert (reply.finish_reason, reply.done) == ("stop", True)
        assert await npc.say("And now?") == ANSWER
        assert npc.n_ctx == 4096
    npc = await client.open_session()
    await npc.close()
    await npc.close()


async def test_two_npcs_at_once(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    broker.answer = lambda said: f"You said: {said}"

    async def talk(name: str) -> list[str]:
        async with client.open_session(system=name) as npc:
            return [await npc.say(f"{name} {turn}") for turn in range(20)]

    heard = await asyncio.wait_for(asyncio.gather(talk("Greta"), talk("Odo")), LONG)
    assert list(heard) == [[f"You said: {name} {turn}" for turn in range(20)] for name in ("Greta", "Odo")]


async def leave_by_break(reply: xlm.AsyncReply) -> None:
    async for _ in reply:
        break


async def leave_by_error(reply: xlm.AsyncReply) -> None:
    async def stumble() -> None:
        async for _ in reply:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await stumble()


async def leave_by_with(reply: xlm.AsyncReply) -> None:
    async with reply:
        pass


async def leave_by_cancelled_task(reply: xlm.AsyncReply) -> None:
    async def read() -> None:
        async for _ in reply:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)  # it has begun to wait
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_with, leave_by_cancelled_task])
async def test_leaving_early_cancels(broker: FakeBroker, client: xlm.AsyncClient, leave: object) -> None:
    assert callable(leave)
    async with client.open_session() as npc:
        broker.hold(after_pieces=2)
        reply = npc.say("Can you?")
        await leave(reply)
        gc.collect()
        cancel = await asyncio.to_thread(broker.wait_for, messages.Cancel)
        assert cancel.say_id == broker.wait_for(messages.Say).id
        assert await reply.wait(LONG)
        assert reply.finish_reason == "cancelled"
        broker.release()
        assert await npc.say("And now?") == ANSWER


async def test_errors_come_typed_after_the_pieces(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    async with client.open_session() as npc:
        broker.hold(after_pieces=1)
        reply = npc.say("Can you?")
        heard = []

        async def listen() -> None:
            async for piece in reply:
                heard.append(piece)
                broker.fail_answers("engine_failed")

        with pytest.raises(xlm.EngineError) as caught:
            await listen()
        assert (heard, caught.value.code) == (["Aye,"], "engine_failed")
        with pytest.raises(xlm.EngineError):
            await reply


async def test_waiting_with_a_limit(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    async with client.open_session() as npc:
        broker.hold()
        reply = npc.say("Can you?")
        assert await reply.wait(0.01) is False
        broker.release()
        assert await reply.wait(LONG) is True


async def test_a_cancelled_call_is_forgotten(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    broker.freeze()
    task = asyncio.create_task(client.set_budget(1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(xlm.BrokerError) as caught:
        await client.set_budget(2, timeout=0.01)
    assert caught.value.code == "timeout"
    broker.freeze(False)
    assert (await client.status()).budget["effective_bytes"] == 2


async def test_notices(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    broker.notify("degraded", "slow", why="test")
    notice = await client.wait_notice(LONG)
    assert notice is not None
    assert (notice.kind, notice.detail) == ("degraded", {"why": "test"})
    assert await client.wait_notice(0.01) is None
    seen: list[str] = []
    client.on_notice = lambda notice: seen.append(notice.kind)
    broker.notify("device_lost")
    await client.status()
    assert seen == ["device_lost"]
    client.on_notice = None
    broker.notify("device_restored")
    await client.status()
    assert [one.kind for one in client.notices()] == ["device_restored"]


async def test_a_broker_that_dies_and_comes_back(broker: FakeBroker, client: xlm.AsyncClient) -> None:
    await client.set_budget("96MiB")
    npc = await client.open_session()
    broker.hold(after_pieces=1)
    pieces = aiter(npc.say("Can you?"))
    assert await anext(pieces) == "Aye,"
    await asyncio.to_thread(broker.kill)
    with pytest.raises(xlm.BrokerError) as caught:
        await anext(pieces)
    assert caught.value.code == "broker_gone"
    with pytest.raises(xlm.BrokerError):
        await client.status()
    broker.release()
    broker.restart(remember_sessions=True)
    await client.wait_connected(LONG)
    assert npc.resumed
    assert await npc.say("Still there?") == ANSWER
    assert (await client.status()).clients[0]["cap_bytes"] == 96 << 20
    await npc.close()


async def test_a_blocked_event_loop_misses_no_heartbeat() -> None:
    with FakeBroker(heartbeat_ms=20.0) as broker:
        async with xlm.aconnect(broker.endpoint, timeout=LONG) as client:
            broker.wait_for(messages.Ping, 6)  # blocks this loop for two times the TTL
            await client.wait_connected(LONG)  # at once, but where the machine itself was busy for longer than the TTL
            assert (await client.status()).engine["state"] == "ready"


async def test_a_closed_loop_hurts_nobody(broker: FakeBroker) -> None:
    def forgetful() -> xlm.AsyncClient:
        async def connect() -> xlm.AsyncClient:
            return await xlm.aconnect(broker.endpoint, timeout=LONG)

        return asyncio.run(connect())

    client = await asyncio.to_thread(forgetful)
    broker.notify("degraded")
    start = time.monotonic()
    while not client.notices():
        assert time.monotonic() < start + LONG
        await asyncio.sleep(0.001)
    await client.close()


def test_who_waits_for_a_notice_learns_that_the_client_was_closed(broker: FakeBroker) -> None:
    async def play() -> None:
        async with xlm.aconnect(broker.endpoint, timeout=LONG) as client:
            waiting = asyncio.create_task(client.wait_notice())
            await asyncio.sleep(0)
        with pytest.raises(xlm.ProtocolError, match="closed"):
            await asyncio.wait_for(waiting, LONG)

    asyncio.run(play())
