"""A bell that is rung is readable until it is silenced, and no ring is lost whoever rings meanwhile."""

from __future__ import annotations

import queue
import threading

import zmq

from xlm_engine.doorbell import Doorbell


def readable(bell: Doorbell) -> bool:
    poller = zmq.Poller()
    poller.register(bell.fileno(), zmq.POLLIN)
    return bool(poller.poll(0))


def test_rung_until_silenced() -> None:
    bell = Doorbell()
    assert not readable(bell)
    for _ in range(3):
        bell.ring()
    assert readable(bell)
    bell.silence()
    assert not readable(bell)
    bell.silence()
    bell.ring()
    assert readable(bell)


def test_what_is_put_down_before_a_ring_is_found_behind_a_silence() -> None:
    bell, box = Doorbell(), queue.SimpleQueue[int]()
    found: list[int] = []
    poller = zmq.Poller()
    poller.register(bell.fileno(), zmq.POLLIN)

    def take() -> None:
        while len(found) < 20_000:
            assert poller.poll(60_000), "a ring was lost"
            bell.silence()
            while not box.empty():
                found.append(box.get())

    taker = threading.Thread(target=take)
    taker.start()
    for value in range(20_000):
        box.put(value)
        bell.ring()
    taker.join()
    assert found == list(range(20_000))
