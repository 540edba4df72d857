"""Images on their way to the broker: one at a time, in chunks, a few of them under way. No sockets, no clock.

``Uploads`` says which messages are due; the connection sends them and hands the
answers back. Who waits for images (an answer to come) is told when all are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from xlm.protocol import messages
from xlm.protocol.messages import IMAGE_CHUNK_BYTES, IMAGE_WINDOW, Message

ATTEMPTS: Final = 3  # of one image: the broker may drop an unfinished one to make room
W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image as it is uploaded. ``data`` must not change any more."""

    layout: messages.ImageBegin
    data: bytes | memoryview

    @property
    def key(self) -> str:
        return self.layout.key


@dataclass(slots=True, eq=False)
class Upload:
    picture: Picture
    begun: bool = False
    told: bool = False  # the broker has answered IMAGE_BEGIN, and wants the bytes
    ended: bool = False
    sent_bytes: int = 0
    unanswered: int = 0  # chunks
    attempts: int = 1

    def due(self) -> list[Message]:
        """What is to be sent now."""
        if not self.begun:
            self.begun = True
            return [_begin(self.picture.layout)]
        due: list[Message] = []
        while self.told and self.unanswered < IMAGE_WINDOW and self.sent_bytes < len(self.picture.data):
            due.append(self._chunk())
        if self.told and not self.ended and self.sent_bytes == len(self.picture.data):
            self.ended = True
            due.append(messages.ImageEnd(key=self.picture.key))
        return due

    def _chunk(self) -> Message:
        piece = bytes(self.picture.data[self.sent_bytes : self.sent_bytes + IMAGE_CHUNK_BYTES])
        chunk = messages.ImageChunk(key=self.picture.key, offset=self.sent_bytes, data=piece)
        self.sent_bytes += len(piece)
        self.unanswered += 1
        return chunk

    def answered(self, request: Message) -> None:
        if isinstance(request, messages.ImageBegin):
            self.told = True
        elif isinstance(request, messages.ImageChunk):
            self.unanswered -= 1


@dataclass(slots=True)
class Uploads(Generic[W]):
    """Not thread-safe."""

    _queue: deque[Upload] = field(default_factory=deque)  # the first one is under way
    _waiting: dict[W, set[str]] = field(default_factory=dict)  # the keys each one still lacks

    def add(self, waiter: W, pictures: Sequence[Picture]) -> None:
        """``waiter`` needs these images; one that another waits for already is not uploaded twice."""
        self._waiting[waiter] = {picture.key for picture in pictures}
        queued = {upload.picture.key for upload in self._queue}
        for picture in {picture.key: picture for picture in pictures}.values():
            if picture.key not in queued:
                self._queue.append(Upload(picture))

    def __contains__(self, waiter: W) -> bool:
        return waiter in self._waiting

    def due(self) -> tuple[Upload | None, list[Message]]:
        """The upload under way, and what is to be sent of it now."""
        if not self._queue:
            return None, []
        return self._queue[0], self._queue[0].due()

    def answered(self, upload: Upload, request: Message, answer: messages.Image) -> list[W]:
        """Takes an answer of the broker; those who have all their images now."""
        if not self._queue or self._queue[0] is not upload:
            return []  # of an attempt that was given up
        if not answer.ready:
            upload.answered(request)
            return []
        self._queue.popleft()
        ready = []
        for waiter, missing in list(self._waiting.items()):
            missing.discard(upload.picture.key)
            if not missing:
                del self._waiting[waiter]
                ready.append(waiter)
        return ready

    def refused(self, upload: Upload, *, again: bool) -> list[W]:
        """An upload failed; those who waited for it, or nobody where it is tried once more."""
        if not self._queue or self._queue[0] is not upload:
            return []
        self._queue.popleft()
        if again and upload.attempts < ATTEMPTS:
            self._queue.appendleft(Upload(upload.picture, attempts=upload.attempts + 1))
            return []
        lost = [waiter for waiter, missing in self._waiting.items() if upload.picture.key in missing]
        for waiter in lost:
            self.drop(waiter)
        return lost

    def drop(self, waiter: W) -> None:
        """It waits no more; images that nobody else waits for are not uploaded."""
        self._waiting.pop(waiter, None)
        wanted = set().union(*self._waiting.values())
        self._queue = deque(upload for upload in self._queue if upload.picture.key in wanted)

    def clear(self) -> list[W]:
        """The connection is gone; who waited."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._queue.clear()
        return waiting


def _begin(layout: messages.ImageBegin) -> messages.ImageBegin:
    """A fresh message: the layout may belong to several attempts."""
    return messages.ImageBegin(
        key=layout.key,
        total_bytes=layout.total_bytes,
        encoding=layout.encoding,
        width=layout.width,
        height=layout.height,
        stride=layout.stride,
        bottom_up=layout.bottom_up,
    )
