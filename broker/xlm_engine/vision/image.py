"""A decoded image as the engine takes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Image:
    """Pixels and their name. ``key`` (SHA-256 over size and pixels, hex) is the same for equal images only.

    ``rgb8`` holds width by height by 3 bytes, row by row without padding, top row first.
    """

    rgb8: bytes
    width: int
    height: int
    key: str

    @classmethod
    def from_rgb8(cls, rgb8: bytes, width: int, height: int) -> Self:
        """Raises ValueError if the bytes are not those of an image of that size."""
        if width < 1 or height < 1:
            raise ValueError(f"an image of {width} by {height} pixels has no pixels")
        if len(rgb8) != width * height * 3:
            raise ValueError(f"{width} by {height} pixels take {width * height * 3} bytes, got {len(rgb8)}")
        return cls(rgb8, width, height, image_key(rgb8, width, height))

    @property
    def n_pixels(self) -> int:
        return self.width * self.height


def image_key(rgb8: bytes, width: int, height: int) -> str:
    """SHA-256 (hex) of an image: its size as two little-endian uint32, then its pixels."""
    digest = hashlib.sha256(width.to_bytes(4, "little") + height.to_bytes(4, "little"))
    digest.update(rgb8)
    return digest.hexdigest()
