"""From an upload's bytes to pixels: RGB, upright, opaque.

Runs in the engine, a process that may die: a decoder's crash costs an answer a
moment, and the broker nothing. The size is read from the header and checked
before a pixel is decoded.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Final

from PIL import Image as pil
from PIL import ImageOps, UnidentifiedImageError

from xlm.errors import ImageError
from xlm.protocol import link
from xlm.protocol.images import check_layout, check_size
from xlm_engine.vision.image import Image

_FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_MODES: Final = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
_RAW: Final = {  # Pillow's mode and raw mode
    "rgb8": ("RGB", "RGB"),
    "rgba8": ("RGBA", "RGBA"),
    "rgbx8": ("RGB", "RGBX"),
    "bgra8": ("RGBA", "BGRA"),
    "bgrx8": ("RGB", "BGRX"),
}
# Beginnings of formats that people have and that are not taken; anything else unknown is called corrupt.
_OTHERS: Final = {
    "TIFF": (b"II*\0", b"MM\0*"),
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "Photoshop": (b"8BPS",),
    "PDF or PostScript": (b"%PDF", b"%!PS"),
    "SVG": (b"<svg", b"<?xml"),
    "DDS": (b"DDS ",),
    "OpenEXR": (b"\x76\x2f\x31\x01",),
    "Radiance HDR": (b"#?RADIANCE", b"#?RGBE"),
    "icon": (b"\0\0\1\0",),
}


def decode(layout: link.ImagePart, data: bytes | bytearray) -> Image:
    """The image in ``data``. Raises ImageError: ``image_corrupt``, ``_empty``, ``_too_large``, ``_animated``,
    ``_unsupported``, ``_upload_invalid``. Thread-safe.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opened = _open(data) if layout.encoding == "encoded" else _raw(layout, data)
            return _pixels(opened)
    except ImageError:
        raise
    except MemoryError:
        raise ImageError("there is no memory to decode the image", code="image_too_large") from None
    except Exception as error:  # decoders raise whatever they like at broken bytes
        raise ImageError(f"the image cannot be decoded: {error}"[:300], code="image_corrupt") from None


def _raw(layout: link.ImagePart, data: bytes | bytearray) -> pil.Image:
    check_layout(layout)
    mode, raw_mode = _RAW[layout.encoding]
    size, orientation = (layout.width, layout.height), -1 if layout.bottom_up else 1
    return pil.frombytes(mode, size, bytes(data), "raw", raw_mode, layout.stride, orientation)


def _open(data: bytes | bytearray) -> pil.Image:
    declared = declared_size(data)
    if declared is not None:
        check_size(*declared)
    try:
        opened = pil.open(io.BytesIO(data), formats=_FORMATS)
    except pil.DecompressionBombError as error:
        raise ImageError(str(error), code="image_too_large") from None
    except UnidentifiedImageError:
        raise _unidentified(data) from None
    check_size(*opened.size)
    _check_kind(opened)
    opened.load()
    return _upright(opened)


def _upright(opened: pil.Image) -> pil.Image:
    """As the camera was held. Broken EXIF data are no reason to refuse a picture."""
    try:
        return ImageOps.exif_transpose(opened)
    except Exception:
        return opened


def _check_kind(opened: pil.Image) -> None:
    # The further pictures of a camera's MPO file are other sizes or angles of the first one.
    if getattr(opened, "is_animated", False) and opened.format != "MPO":
        raise ImageError(f"an animated {opened.format}", code="image_animated")
    if opened.mode not in _MODES:
        text = f"a {opened.format} in {opened.mode}"
        raise ImageError(text, code="image_unsupported", hint="send it as RGB or grey with 8 bits a channel")


def _unidentified(data: bytes | bytearray) -> ImageError:
    head = bytes(data[:64]).lstrip()
    for name, beginnings in _OTHERS.items():
        if bytes(data[:12]).startswith(beginnings) or head.startswith(beginnings):
            return ImageError(f"a file in {name} format", code="image_unsupported")
    if data[4:8] == b"ftyp":
        return ImageError("a file in AVIF, HEIC or a video format", code="image_unsupported")
    return ImageError("this is no image, or a damaged one", code="image_corrupt")


def _pixels(opened: pil.Image) -> Image:
    if opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info:
        colours = opened.convert("RGBA")
        opened = pil.alpha_composite(pil.new("RGBA", colours.size, "white"), colours)
    pixels = opened.convert("RGB")
    return Image.from_rgb8(pixels.tobytes(), pixels.width, pixels.height)


# -- sizes, before a decoder sees the bytes: Pillow calls a picture without pixels no picture at all ---------------


_SIZES: Final = (  # of formats with the size in one place
    ((b"\x89PNG\r\n\x1a\n",), ">II", 16),
    ((b"GIF87a", b"GIF89a"), "<HH", 6),
    ((b"BM",), "<ii", 18),
)


def declared_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """Width and height as the file's header says; None where that is for Pillow to find out."""
    try:
        return _declared_size(bytes(data[: 1 << 16]))
    except (struct.error, IndexError):
        return None


def _declared_size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(head)
    for beginnings, fields, at in _SIZES:
        if head.startswith(beginnings):
            width, height = struct.unpack_from(fields, head, at)
            return abs(width), abs(height)  # a negative height in BMP: top row first
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Of the first start-of-frame segment (ITU-T T.81, B.2.2)."""
    at = 2
    while head[at] == 0xFF:
        marker, length = head[at + 1], struct.unpack_from(">H", head, at + 2)[0]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        at += 2 + length
    return None
