"""A FakeBroker for the native tests: commands on stdin, one answer line each on stdout.

The first line out is the endpoint. Arguments of commands are separated by tabs:
``answer TEXT``, ``kill``, ``restart``, ``restart remember``, ``hold N``, ``release``,
``notify KIND TEXT``, ``fail TYPE CODE``, ``fail_answers CODE``, ``expire``,
``freeze``, ``thaw``, ``raw HEX``, ``miss_deadlines``, ``requests`` (their types, then
forgotten), ``images``, ``chunks``, ``forget`` (images), ``clients``, ``last TYPE`` (the last such
request, as text). End of input ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from xlm.testing import FakeBroker


class Script:
    """The commands, each a method that returns the answer."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def answer(self, text: str) -> None:
        self._broker.answer = text

    def kill(self) -> None:
        self._broker.kill()

    def restart(self, how: str = "") -> None:
        self._broker.restart(remember_sessions=how == "remember")

    def hold(self, pieces: str) -> None:
        self._broker.hold(int(pieces))

    def release(self) -> None:
        self._broker.release()

    def notify(self, kind: str, text: str = "") -> None:
        self._broker.notify(kind, text, granted_bytes=4096)

    def fail(self, request: str, code: str) -> None:
        self._broker.fail_next(request, code)

    def fail_answers(self, code: str) -> None:
        self._broker.fail_answers(code)

    def expire(self) -> None:
        self._broker.expire_leases()

    def freeze(self) -> None:
        self._broker.freeze()

    def thaw(self) -> None:
        self._broker.freeze(False)

    def raw(self, hexadecimal: str) -> None:
        self._broker.send_raw(bytes.fromhex(hexadecimal))

    def miss_deadlines(self) -> None:
        self._broker.miss_deadlines()

    def requests(self) -> str:
        seen, self._broker.requests = self._broker.requests, []
        return " ".join(type(request).__name__ for request in seen)

    def images(self) -> str:
        """Of the last SAY, each image's bytes in hexadecimal."""
        say = [request for request in self._broker.requests if type(request).__name__ == "Say"][-1]
        return " ".join(self._broker.images[key].hex() for key in say.images)  # type: ignore[attr-defined]

    def chunks(self) -> str:
        """How many were received, and the longest."""
        sizes = [len(request.data) for request in self._broker.requests if type(request).__name__ == "ImageChunk"]  # type: ignore[attr-defined]
        return f"{len(sizes)} {max(sizes, default=0)}"

    def forget(self) -> None:
        self._broker.forget_images()

    def clients(self) -> str:
        return " ".join(self._broker.clients)

    def last(self, kind: str) -> str:
        matching = [request for request in self._broker.requests if type(request).__name__ == kind]
        return repr(matching[-1]) if matching else ""


def main() -> None:
    versions = (int(sys.argv[2]), int(sys.argv[2])) if len(sys.argv) > 2 else (1, 1)
    heartbeat_ms = float(sys.argv[1]) if len(sys.argv) > 1 else 1000.0
    with FakeBroker(answer="Greetings, traveller.", heartbeat_ms=heartbeat_ms, versions=versions) as broker:
        print(broker.endpoint, flush=True)
        script = Script(broker)
        for line in sys.stdin:
            name, *arguments = line.rstrip("\n").split("\t")
            command: Callable[..., str | None] = getattr(script, name)
            print(command(*arguments) or "ok", flush=True)


if __name__ == "__main__":
    main()
