"""What an uploaded image is: its layout, its name, its limits. Pure; any thread."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

from xlm.errors import ImageError
from xlm.protocol.messages import ImageEncoding

MAX_SIDE: Final = 16_384  # pixels
MAX_PIXELS: Final = 40_000_000  # 8K is 33.2 million
CHANNELS: Final[dict[str, int]] = {"rgb8": 3, "rgba8": 4, "rgbx8": 4, "bgra8": 4, "bgrx8": 4}


class Layout(Protocol):
    """IMAGE_BEGIN, or whatever has its fields."""

    @property
    def total_bytes(self) -> int: ...
    @property
    def encoding(self) -> ImageEncoding: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def bottom_up(self) -> bool: ...


def key_header(layout: Layout) -> bytes:
    """What is hashed before an image's bytes, so that equal bytes of another shape have another key."""
    sides = f"{layout.width}:{layout.height}:{layout.stride}:{int(layout.bottom_up)}"
    return f"xlm-image:{layout.encoding}:{sides}\n".encode()


def upload_key(layout: Layout, data: bytes | bytearray | memoryview) -> str:
    """The key of an image: SHA-256, in hex, of its header and its bytes."""
    digest = hashlib.sha256(key_header(layout))
    digest.update(data)
    return digest.hexdigest()


def check_layout(layout: Layout) -> None:
    """Whether an upload can be an image at all. Raises ImageError (``image_empty``, ``image_too_large``,
    ``image_upload_invalid``).
    """
    if layout.total_bytes == 0:
        raise ImageError("the image has no bytes", code="image_empty")
    if layout.encoding != "encoded":
        check_size(layout.width, layout.height)
        _check_rows(layout)
    elif layout.width or layout.height or layout.stride or layout.bottom_up:
        raise ImageError("an encoded image tells its size itself", code="image_upload_invalid")


def check_size(width: int, height: int) -> None:
    """Raises ImageError (``image_empty``, ``image_too_large``)."""
    if width < 1 or height < 1:
        raise ImageError(f"an image of {width}x{height} pixels has no pixels", code="image_empty")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        text = f"{width}x{height} pixels are more than {MAX_SIDE} a side or {MAX_PIXELS / 1e6:g} million"
        raise ImageError(text, code="image_too_large")


def _check_rows(layout: Layout) -> None:
    row_bytes = layout.width * CHANNELS[layout.encoding]
    if layout.stride < row_bytes:
        text = f"a row of {layout.width} pixels takes {row_bytes} bytes, the stride is {layout.stride}"
        raise ImageError(text, code="image_upload_invalid")
    expected = layout.stride * (layout.height - 1) + row_bytes
    if layout.total_bytes != expected:
        text = f"{layout.width}x{layout.height} pixels in rows of {layout.stride} bytes take {expected} bytes"
        raise ImageError(f"{text}, not {layout.total_bytes}", code="image_upload_invalid")
