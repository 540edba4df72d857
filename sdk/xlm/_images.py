"""From what a user calls an image to what is uploaded. Neither Pillow nor numpy is needed: who passes theirs has them.

path        the file's bytes, as they are
bytes       an encoded image: PNG, JPEG, WebP, BMP, GIF
PIL image   its pixels, upright
numpy       H x W x 3 or 4, uint8: RGB or RGBA, top row first
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from xlm._uploads import Picture
from xlm.errors import ImageError
from xlm.protocol import messages
from xlm.protocol.images import CHANNELS, check_layout, check_size, upload_key

ImageSource = Any
"""A path, bytes, a ``PIL.Image.Image`` or a numpy array; see the text of ``xlm.Session.say``."""

MAX_IMAGES: Final = 64  # messages.Say


def pictures(sources: Sequence[ImageSource]) -> list[Picture]:
    """Raises ImageError (``image_unsupported``, ``image_empty``, ``image_too_large``, ``too_many_images``)."""
    if isinstance(sources, (str, bytes, bytearray, os.PathLike)) or not _is_sequence(sources):
        raise ImageError("images is a list of images", code="image_unsupported", hint="images=[image]")
    if len(sources) > MAX_IMAGES:
        raise ImageError(f"{len(sources)} images in one turn", code="too_many_images")
    return [picture(source) for source in sources]


def _is_sequence(sources: object) -> bool:
    return isinstance(sources, (list, tuple)) or (isinstance(sources, Sequence) and not _is_array(sources))


def picture(source: ImageSource) -> Picture:
    """One image; what it was made of may change afterwards. Errors: see ``pictures``."""
    if isinstance(source, (str, os.PathLike)):
        return _encoded(_read(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _encoded(bytes(source))
    if _is_array(source):
        return _from_array(source)
    if _is_pil(source):
        return _from_pil(source)
    text = f"{type(source).__name__} is no image"
    raise ImageError(text, code="image_unsupported", hint="a path, bytes, a PIL image or a numpy array")


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        text = f"the image {os.fspath(path)} cannot be read: {error.strerror or error}"
        raise ImageError(text, code="image_unsupported", hint="check the path and who may read it") from error


def _is_array(source: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(source, numpy.ndarray)


def _is_pil(source: object) -> bool:
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(source, pil.Image)


def _encoded(data: bytes) -> Picture:
    return _picture(messages.ImageBegin(key="0" * 64, total_bytes=len(data)), data)


def _from_array(array: Any) -> Picture:
    if array.dtype.name != "uint8" or array.ndim != 3 or array.shape[2] not in (3, 4):
        text = f"an array of {array.dtype.name} and shape {tuple(array.shape)}"
        raise ImageError(text, code="image_unsupported", hint="height x width x 3 (RGB) or 4 (RGBA), uint8")
    height, width, channels = array.shape
    check_size(width, height)  # before the copy
    return _raw("rgb8" if channels == 3 else "rgba8", width, height, array.tobytes())


def _from_pil(image: Any) -> Picture:
    check_size(*image.size)
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image) or image
    has_alpha = upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info
    pixels = upright.convert("RGBA" if has_alpha else "RGB")
    return _raw("rgba8" if has_alpha else "rgb8", pixels.width, pixels.height, pixels.tobytes())


def _raw(encoding: messages.ImageEncoding, width: int, height: int, data: bytes) -> Picture:
    stride = width * CHANNELS[encoding]
    layout = messages.ImageBegin(
        key="0" * 64, total_bytes=len(data), encoding=encoding, width=width, height=height, stride=stride
    )
    return _picture(layout, data)


def _picture(layout: messages.ImageBegin, data: bytes) -> Picture:
    check_layout(layout)
    layout.key = upload_key(layout, data)
    return Picture(layout, data)
