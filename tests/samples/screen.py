"""A screen without a monitor, and what is to be seen on it."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Picture = np.ndarray[Any, np.dtype[np.uint8]]  # rows, columns, red green blue
Colour = tuple[int, int, int]


def of_bmp(path: Path) -> Picture:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def of_xwd(path: Path) -> Picture:
    """The frame buffer that Xvfb keeps in a file: an XWD dump (X11/XWDFile.h), 32 bits a pixel here."""
    data = path.read_bytes()
    header = struct.unpack(">25I", data[:100])
    header_size, width, height, line_bytes, colours = header[0], header[4], header[5], header[12], header[19]
    assert header[11] == 32, "bits per pixel"
    pixels = np.frombuffer(data, np.uint8, height * line_bytes, header_size + colours * 12)
    rows = pixels.reshape(height, line_bytes)[:, : width * 4].reshape(height, width, 4)
    return rows[:, :, 2::-1] if header[7] == 0 else rows[:, :, 1:]  # byte order: least significant first, or last


def part(picture: Picture, area: tuple[int, int, int, int]) -> Picture:
    x, y, w, h = area
    return picture[y : y + h, x : x + w]


def count(picture: Picture, colour: Colour) -> int:
    """Pixels of exactly this colour."""
    return int(np.all(picture == colour, axis=2).sum())


def width(picture: Picture, colour: Colour) -> int:
    """Columns in which the colour is."""
    return int(np.any(np.all(picture == colour, axis=2), axis=0).sum())


@dataclass(frozen=True)
class Screen:
    display: str
    frame_buffer: Path

    def look(self) -> Picture:
        return of_xwd(self.frame_buffer)


@contextmanager
def virtual_screen(size: str = "960x540x24") -> Iterator[Screen]:
    """An Xvfb of its own. It tells its display's number once it takes connections."""
    with tempfile.TemporaryDirectory(prefix="xlm-screen-") as folder:
        ready, told = os.pipe()
        words = ["-displayfd", str(told), "-screen", "0", size, "-fbdir", folder, "-nolisten", "tcp"]
        server = subprocess.Popen(["Xvfb", *words], pass_fds=[told], stderr=subprocess.DEVNULL)
        os.close(told)
        try:
            with os.fdopen(ready) as pipe:
                number = pipe.readline().strip()
            assert number, "Xvfb did not start"
            yield Screen(f":{number}", Path(folder) / "Xvfb_screen0")
        finally:
            server.terminate()
            server.wait()
