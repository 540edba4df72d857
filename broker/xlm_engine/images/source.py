"""Images as turns ask for them: fetched from the broker piece by piece, decoded beside the model, kept until taken.

Two threads meet here: the decode thread asks (``get``, ``next_request``), the
link's hands in what comes (``take_part``). Decoding has a thread of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from xlm.errors import ImageError, XlmError
from xlm.protocol import link
from xlm_engine.images.decode import decode
from xlm_engine.vision.image import Image

KEPT_BYTES: Final = 256 << 20  # of decoded pixels that turns wait for
MAX_UNDECODED: Final = 2  # uploads that are here and not decoded, beside the one under way
_KEPT_FAILURES: Final = 256
_PIECE_BYTES: Final = 256 << 10


@dataclass(slots=True)
class _Transfer:
    key: str
    data: bytearray = field(default_factory=bytearray)


class Images:
    """``changed`` is called, on any thread, when an image has come, is decoded or has failed."""

    def __init__(
        self,
        changed: Callable[[], None],
        *,
        kept_bytes: int = KEPT_BYTES,
        decoder: Callable[[link.ImagePart, bytes | bytearray], Image] = decode,
    ) -> None:
        self._changed: Final = changed
        self._kept_bytes: Final = kept_bytes
        self._decoder: Final = decoder
        self._lock: Final = threading.Lock()
        self._pool: Final = ThreadPoolExecutor(1, "images")
        self._decoded: Final[OrderedDict[str, Image]] = OrderedDict()
        self._decoded_bytes = 0
        self._failed: Final[OrderedDict[str, XlmError]] = OrderedDict()
        self._wanted: Final[deque[str]] = deque()
        self._transfer: _Transfer | None = None
        self._decoding: Final[set[str]] = set()

    @property
    def held_bytes(self) -> int:
        """Of decoded pixels."""
        return self._decoded_bytes

    def get(self, key: str) -> Image | None:
        """The image; None: not here yet, it is asked for. Raises what is wrong with it."""
        with self._lock:
            if (error := self._failed.get(key)) is not None:
                if error.retryable:
                    del self._failed[key]  # it may be uploaded by the next time
                raise error
            if (image := self._decoded.get(key)) is not None:
                self._decoded.move_to_end(key)
                return image
            if key not in self._wanted and key not in self._decoding and not self._is_under_way(key):
                self._wanted.append(key)
            return None

    def forget(self, key: str) -> None:
        """Lets its pixels go: whoever took them keeps them for as long as they are needed."""
        with self._lock:
            image = self._decoded.pop(key, None)
            self._decoded_bytes -= len(image.rgb8) if image is not None else 0

    def next_request(self) -> link.WantImage | None:
        """The beginning of the next transfer, to be sent to the broker; None: nothing to ask for now."""
        with self._lock:
            if not self._wanted or self._transfer is not None or len(self._decoding) >= MAX_UNDECODED:
                return None
            self._transfer = _Transfer(self._wanted.popleft())
            return link.WantImage(key=self._transfer.key, max_bytes=_PIECE_BYTES)

    def take_part(self, part: link.ImagePart) -> link.WantImage | None:
        """Takes what the broker sent; the request for the bytes behind it."""
        with self._lock:
            transfer = self._transfer
            if transfer is None or part.key != transfer.key or part.offset != len(transfer.data):
                return None
            transfer.data += part.data
            if part.data and len(transfer.data) < part.total_bytes:
                return link.WantImage(key=part.key, offset=len(transfer.data), max_bytes=_PIECE_BYTES)
            self._transfer = None
            whole = 0 < part.total_bytes == len(transfer.data)
            if whole:
                self._decoding.add(part.key)
            else:
                self._fail(part.key, ImageError("the broker no longer has the image", code="image_unknown"))
        if whole:
            self._pool.submit(self._decode, part, transfer.data)
        self._changed()  # also for the next transfer to begin
        return None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_under_way(self, key: str) -> bool:
        return self._transfer is not None and self._transfer.key == key

    def _decode(self, layout: link.ImagePart, data: bytearray) -> None:
        image: Image | None = None
        error: XlmError = ImageError("the image cannot be decoded", code="image_corrupt")
        try:
            image = self._decoder(layout, data)
        except XlmError as problem:
            error = problem
        except Exception as problem:
            error = ImageError(f"the image cannot be decoded: {problem}", code="image_corrupt")
        with self._lock:
            self._decoding.discard(layout.key)
            self._keep(layout.key, image) if image is not None else self._fail(layout.key, error)
        self._changed()

    def _keep(self, key: str, image: Image) -> None:
        """The newest always; older ones as long as there is room."""
        self._decoded[key] = image
        self._decoded_bytes += len(image.rgb8)
        while self._decoded_bytes > self._kept_bytes and len(self._decoded) > 1:
            self._decoded_bytes -= len(self._decoded.popitem(last=False)[1].rgb8)

    def _fail(self, key: str, error: XlmError) -> None:
        self._failed[key] = error
        while len(self._failed) > _KEPT_FAILURES:
            self._failed.popitem(last=False)
