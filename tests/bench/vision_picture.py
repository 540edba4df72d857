"""The picture of the vision benchmark: device memory of a request, stock and ours, on a logarithmic scale."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from PIL import Image, ImageDraw, ImageFont

MIB: Final = 1 << 20
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 460, 70, 400, 60
LOW, HIGH = 1.0, 4096.0  # MiB
COLOURS: Final = {
    "stock, no flash attention": "#b0413e",
    "stock, flash attention": "#e08e45",
    "ours, budget all": "#2f6690",
    "ours, budget 16 MiB": "#3a9d7c",
    "ours, budget 6 MiB": "#9bc53d",
}


def draw(result: dict[str, Any], path: Path) -> None:
    """One group of bars a resolution, one bar for each way to run it."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    pen.text((LEFT, 12), "Device memory of one request with an image (MiB, peak)", fill="black", font=font)
    _axis(pen, font)
    _legend(pen, font)
    names = list(result["peaks"])
    step = (WIDTH - LEFT - 20) / len(names)
    for index, name in enumerate(names):
        at = LEFT + index * step + 14
        _bars(pen, font, at, (step - 28) / len(COLOURS), _values(result["peaks"][name]))
        pen.text((at + step / 2 - 34, BOTTOM + 8), name, fill="black", font=font)
    image.save(path)


def _values(row: dict[str, Any]) -> list[float]:
    ours = row["ours"]
    peaks = (row["stock"], row["stock_flash"], *(ours[budget]["peak"] for budget in ("all", "16 MiB", "6 MiB")))
    return [peak / MIB for peak in peaks]


def _height(mib: float) -> float:
    share = math.log(max(mib, LOW) / LOW) / math.log(HIGH / LOW)
    return BOTTOM - share * (BOTTOM - TOP - 50)


def _axis(pen: ImageDraw.ImageDraw, font: Any) -> None:
    mib = LOW
    while mib <= HIGH:
        y = _height(mib)
        pen.line((LEFT, y, WIDTH - 20, y), fill="#dddddd")
        pen.text((LEFT - 50, y - 8), f"{mib:.0f}", fill="black", font=font)
        mib *= 4


def _legend(pen: ImageDraw.ImageDraw, font: Any) -> None:
    for index, (name, colour) in enumerate(COLOURS.items()):
        x, y = LEFT + index % 3 * 270, 36 + index // 3 * 20
        pen.rectangle((x, y, x + 12, y + 12), fill=colour)
        pen.text((x + 18, y - 2), name, fill="black", font=font)


def _bars(pen: ImageDraw.ImageDraw, font: Any, at: float, width: float, values: list[float]) -> None:
    for index, (value, colour) in enumerate(zip(values, COLOURS.values(), strict=True)):
        x = at + index * width
        pen.rectangle((x, _height(value), x + width - 3, BOTTOM), fill=colour)
        pen.text((x, _height(value) - 16), f"{value:.0f}", fill="black", font=font)
