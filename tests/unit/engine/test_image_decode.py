"""Decoding: every good kind gives the right pixels, every bad one its own typed error, none costs memory first."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as pil

from xlm.errors import ImageError
from xlm.protocol import link
from xlm.protocol.images import CHANNELS
from xlm_engine.images.decode import declared_size, decode
from xlm_engine.vision.image import Image

RNG = np.random.default_rng(7)
PHOTO = RNG.integers(0, 256, (13, 17, 3), dtype=np.uint8)


def layout(data: bytes, **fields: Any) -> link.ImagePart:
    return link.ImagePart(key="k", total_bytes=len(data), **fields)


def pixels(image: Image) -> Any:
    return np.frombuffer(image.rgb8, np.uint8).reshape(image.height, image.width, 3)


def saved(image: pil.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def decoded(data: bytes) -> Any:
    return pixels(decode(layout(data), data))


def code(data: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        decode(layout(data), data)
    assert str(caught.value)
    return caught.value.code


def png(width: int, height: int, body: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


# -- good ones ---------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats(kind: str, options: dict[str, Any]) -> None:
    assert np.array_equal(decoded(saved(pil.fromarray(PHOTO), kind, **options)), PHOTO)


def test_jpeg_is_what_pillow_makes_of_it() -> None:
    data = saved(pil.fromarray(PHOTO), "JPEG")
    assert np.array_equal(decoded(data), np.asarray(pil.open(io.BytesIO(data))))


def test_a_still_gif_grey_and_one_bit() -> None:
    grey = pil.fromarray(PHOTO[:, :, 0])
    assert np.array_equal(decoded(saved(grey, "GIF"))[:, :, 1], PHOTO[:, :, 0])
    assert np.array_equal(decoded(saved(grey, "PNG"))[:, :, 2], PHOTO[:, :, 0])
    assert set(decoded(saved(grey.convert("1"), "PNG")).flat) == {0, 255}


def test_alpha_is_laid_over_white() -> None:
    rgba = np.dstack([PHOTO, np.zeros((13, 17), np.uint8)])
    rgba[3, 4] = (10, 20, 30, 255)
    rgba[5, 6] = (0, 0, 0, 51)
    flat = decoded(saved(pil.fromarray(rgba), "PNG"))
    assert flat[0, 0].tolist() == [255, 255, 255]
    assert flat[3, 4].tolist() == [10, 20, 30]
    assert flat[5, 6].tolist() == [204, 204, 204]


def test_a_transparent_colour_of_a_palette() -> None:
    image = pil.fromarray(np.zeros((2, 2), np.uint8), "L").convert("P")
    assert (decoded(saved(image, "PNG", transparency=0)) == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation: int) -> None:
    exif = pil.Exif()
    exif[0x0112] = orientation
    upright = {
        1: PHOTO, 2: PHOTO[:, ::-1], 3: PHOTO[::-1, ::-1], 4: PHOTO[::-1], 5: PHOTO.transpose(1, 0, 2),
        6: np.rot90(PHOTO, -1), 7: PHOTO[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(PHOTO),
    }[orientation]  # fmt: skip
    assert np.array_equal(decoded(saved(pil.fromarray(PHOTO), "PNG", exif=exif)), upright)


@pytest.mark.parametrize("rest", [b"\xff\xff\xff\xff garbage", b"\x08\0\0\0\xff\xff", b""])
def test_broken_exif_is_no_reason_to_refuse(rest: bytes) -> None:
    data = saved(pil.fromarray(PHOTO), "PNG", exif=b"Exif\0\0II*\0" + rest)
    assert np.array_equal(decoded(data), PHOTO)


@pytest.mark.parametrize("encoding", sorted(CHANNELS))
@pytest.mark.parametrize("bottom_up", [False, True])
@pytest.mark.parametrize("padding", [0, 5])
def test_raw_pixels(encoding: Any, bottom_up: bool, padding: int) -> None:
    n = CHANNELS[encoding]
    stored = np.full((13, 17, n), 255 if "a" in encoding else 0, np.uint8)
    stored[:, :, :3] = PHOTO[:, :, ::-1] if encoding.startswith("bgr") else PHOTO
    rows = [row.tobytes() + b"\xee" * padding for row in (stored[::-1] if bottom_up else stored)]
    data = b"".join(rows)[: -padding or None]
    made = layout(data, encoding=encoding, width=17, height=13, stride=17 * n + padding, bottom_up=bottom_up)
    assert np.array_equal(pixels(decode(made, data)), PHOTO)


def test_raw_alpha_is_laid_over_white_and_an_x_is_ignored() -> None:
    data = bytes([1, 2, 3, 0])
    sizes: dict[str, Any] = {"width": 1, "height": 1, "stride": 4}
    assert pixels(decode(layout(data, encoding="rgba8", **sizes), data)).tolist() == [[[255, 255, 255]]]
    assert pixels(decode(layout(data, encoding="bgrx8", **sizes), data)).tolist() == [[[3, 2, 1]]]


# -- bad ones ----------------------------------------------------------------------------


def test_cut_and_broken_files_are_corrupt() -> None:
    noise = pil.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        whole = saved(noise, kind)
        assert code(whole[: len(whole) // 2]) == "image_corrupt", kind
    assert code(b"") == "image_corrupt"
    assert code(b"hello") == "image_corrupt"
    assert code(bytes(1000)) == "image_corrupt"


def test_pictures_without_pixels_are_empty() -> None:
    assert code(png(0, 0)) == "image_empty"
    assert code(png(0, 5)) == "image_empty"
    gif = bytearray(saved(pil.new("L", (3, 3)), "GIF"))
    gif[6:10] = bytes(4)
    assert code(bytes(gif)) == "image_empty"
    bmp = bytearray(saved(pil.new("RGB", (3, 3)), "BMP"))
    bmp[18:26] = bytes(8)
    assert code(bytes(bmp)) == "image_empty"
    jpeg = bytearray(saved(pil.new("RGB", (3, 3)), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = bytes(4)
    assert code(bytes(jpeg)) == "image_empty"


@pytest.mark.parametrize(("width", "height"), [(60_000, 1), (1, 60_000), (60_000, 60_000), (16_000, 16_000)])
def test_huge_pictures_are_refused_by_their_header(width: int, height: int) -> None:
    assert code(png(width, height, b"\0" * 100)) == "image_too_large"


def test_a_huge_webp_is_refused_before_it_is_decoded() -> None:
    data = saved(pil.new("L", (16_383, 3_000)), "WEBP", lossless=True, method=0)
    assert len(data) < 100_000
    assert code(data) == "image_too_large"


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animated_pictures_are_refused(kind: str) -> None:
    frames = [pil.fromarray(RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(3)]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    assert code(data) == "image_animated"


def test_cmyk_sixteen_bits_and_foreign_formats_are_unsupported() -> None:
    assert code(saved(pil.new("CMYK", (4, 4)), "JPEG")) == "image_unsupported"
    assert code(saved(pil.fromarray(np.zeros((4, 4), np.uint16)), "PNG")) == "image_unsupported"
    assert code(saved(pil.new("RGB", (4, 4)), "TIFF")) == "image_unsupported"
    assert code(b"<svg xmlns='http://www.w3.org/2000/svg'/>") == "image_unsupported"
    assert code(b"%!PS-Adobe-3.0 EPSF-3.0\n") == "image_unsupported"
    assert code(b"\0\0\0\x1cftypavif" + bytes(20)) == "image_unsupported"


def test_a_raw_layout_that_lies_is_typed() -> None:
    with pytest.raises(ImageError) as caught:
        decode(layout(b"123", encoding="rgb8", width=4, height=4, stride=12), b"123")
    assert caught.value.code == "image_upload_invalid"


@given(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]), st.data())
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_pixels_or_a_typed_error(kind: str, data: st.DataObject) -> None:
    changed = bytearray(saved(pil.fromarray(PHOTO), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    declared_size(changed)
    with contextlib.suppress(ImageError):
        image = decode(layout(changed), bytes(changed))
        assert len(image.rgb8) == image.width * image.height * 3
