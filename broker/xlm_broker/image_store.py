"""The bytes of images. Decides nothing: which live how long is the state machine's business.

Memory grows with the bytes that came, never with what was announced.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from xlm.protocol import link, messages
from xlm.protocol.images import key_header

MAX_PART_BYTES = 256 << 10


@dataclass(slots=True)
class _Upload:
    digest: Any  # hashlib's: fed as the bytes come, so that no event takes long
    data: bytearray = field(default_factory=bytearray)


class ImageStore:
    """Not thread-safe; the driver's."""

    def __init__(self) -> None:
        self._uploads: dict[int, _Upload] = {}
        self._images: dict[str, bytes | bytearray] = {}

    @property
    def held_bytes(self) -> int:
        parts = sum(len(upload.data) for upload in self._uploads.values())
        return parts + sum(len(data) for data in self._images.values())

    def begin(self, upload_id: int, layout: messages.ImageBegin) -> None:
        self._uploads[upload_id] = _Upload(hashlib.sha256(key_header(layout)))

    def add(self, upload_id: int, data: bytes) -> None:
        upload = self._uploads.get(upload_id)
        if upload is not None:
            upload.data += data
            upload.digest.update(data)

    def end(self, upload_id: int, key: str) -> bool:
        """Whether the bytes are those of the key; they are kept under it then, and forgotten otherwise."""
        upload = self._uploads.pop(upload_id, None)
        if upload is None or upload.digest.hexdigest() != key:
            return False
        self._images.setdefault(key, upload.data)
        return True

    def forget_upload(self, upload_id: int) -> None:
        self._uploads.pop(upload_id, None)

    def drop(self, key: str) -> None:
        self._images.pop(key, None)

    def part(self, layout: messages.ImageBegin, offset: int, max_bytes: int) -> link.ImagePart:
        """A piece of an image for the engine; one without bytes where there is no such piece."""
        data = self._images.get(layout.key, b"")
        count = max(0, min(max_bytes, MAX_PART_BYTES))
        return link.ImagePart(
            key=layout.key,
            total_bytes=len(data),
            encoding=layout.encoding,
            width=layout.width,
            height=layout.height,
            stride=layout.stride,
            bottom_up=layout.bottom_up,
            offset=offset,
            data=bytes(memoryview(data)[offset : offset + count]) if offset >= 0 else b"",
        )
