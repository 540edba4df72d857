"""The vision tower of the loaded model: which tokens an image is, and their embeddings, each computed once.

Owned by the decode thread; ``interrupt`` may be called from any other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from xlm.errors import DeviceError, ImageError
from xlm_engine import logs, shapes
from xlm_engine.llama_log import LlamaLog
from xlm_engine.vision.image import Image
from xlm_engine.vision.mtmd import Embeddings, EncodeAborted, EncodeFailed, ImagePart, Part, Projector
from xlm_engine.vision.scaled import Scaled
from xlm_native import Device

CACHE_BYTES: Final = 256 << 20  # of embeddings and pixels kept for images that are not being answered
PIECE_BYTES: Final = 4 << 20  # of the tower's copies: then it is looked whether the image is there
MAX_SIZES: Final = 64  # of images whose parts are remembered
_PROBES: Final = ((4096, 4096), (4096, 1024), (1024, 4096))  # shapes that ask for as many tokens as a model gives


@dataclass(slots=True, eq=False)
class Seen:
    """An image the tower knows. ``embeddings`` fills up part by part; ``image`` goes when all are there."""

    key: str  # of its pixels
    parts: list[Part]
    image: Image | None
    embeddings: list[Embeddings | None] = field(default_factory=list)

    @property
    def encoded(self) -> bool:
        return all(embeddings is not None for embeddings in self.embeddings)

    @property
    def n_bytes(self) -> int:
        pixels = len(self.image.rgb8) if self.image is not None else 0
        return pixels + sum(e.nbytes for e in self.embeddings if e is not None)

    @property
    def runs(self) -> list[ImagePart]:
        return [part for part in self.parts if isinstance(part, ImagePart)]

    def entries(self) -> list[int]:
        """What stands for the image in a conversation (see shapes.py)."""
        flagged: list[int] = []
        count = 0
        for part in self.parts:
            if isinstance(part, ImagePart):
                flagged += shapes.image_run(self.key, count, part.n_tokens, part.n_pos, whole=part.non_causal)
                count += 1
            else:
                flagged += part
        return flagged


class VisionTower:
    """Loads with the constructor (ModelError); ``close`` before the language model is freed.

    Images are known by the key they were uploaded under; the same pixels under two keys are encoded once.
    """

    def __init__(self, path: str, model: Any, device: Device, n_threads: int, log: LlamaLog) -> None:
        self._device: Final = device
        self._projector: Final = Projector(path, model, device, n_threads, log)
        self._seen: Final[OrderedDict[str, Seen]] = OrderedDict()  # by pixel key, least recently used first
        self._names: Final[dict[str, str]] = {}  # upload key -> pixel key
        self._lock: Final = threading.Lock()
        self._at_work = 0  # gen_id whose image is being encoded; 0: none
        self._aborted = False
        self._phase_open = False
        self._scaled: Final = Scaled(self._projector)
        self._parts: Final[dict[tuple[int, int], list[Part]]] = {}  # by width and height
        self.n_encoded = 0
        self.n_reused = 0

    @property
    def model_id(self) -> int:
        return self._projector.model_id

    @property
    def n_embd(self) -> int:
        return self._projector.n_embd

    @property
    def mrope(self) -> bool:
        return self._projector.mrope

    def status(self) -> dict[str, int | str]:
        """For people; thread safe. ``vision_attention`` "cpu": the device cannot run the tower's attention."""
        on_cpu = self._device.stats()["n_vision_attention_cpu"] > 0
        return {
            "images_encoded": self.n_encoded,
            "images_reused": self.n_reused,
            "vision_attention": "cpu" if on_cpu else "flash",
        }

    def close(self) -> None:
        self._seen.clear()
        self._scaled.close()
        self._projector.close()

    # -- what an image is

    def has(self, upload_key: str) -> bool:
        """Whether everything about an image is still known, so that its pixels are not needed."""
        seen = self._seen.get(self._names.get(upload_key, ""))
        return seen is not None and (seen.encoded or seen.image is not None)

    def see(self, upload_key: str, image: Image | None) -> Seen:
        """What stands for an image. ``image`` may be None where ``has`` says so; else ImageError.

        Whoever holds the result keeps it from being forgotten. Encodes nothing.
        """
        known = self._seen.get(image.key if image is not None else self._names.get(upload_key, ""))
        if known is None:
            if image is None:
                raise ImageError("an image of the conversation is gone", code="image_unknown")
            known = self._look(image)
            self._seen[image.key] = known
        elif image is not None and not known.encoded:
            known.image = image
        self.n_reused += known.encoded
        self._names[upload_key] = known.key
        self._seen.move_to_end(known.key)
        self._trim()
        return known

    def _look(self, image: Image) -> Seen:
        parts = self._parts_of(image.width, image.height)
        runs = sum(isinstance(part, ImagePart) for part in parts)
        return Seen(image.key, parts, image, [None] * runs)

    def _parts_of(self, width: int, height: int) -> list[Part]:
        """What an image is made of depends on its size only: its pixels are scaled once, to be encoded."""
        parts = self._parts.get((width, height))
        if parts is None:
            with self._projector.chunks(Image(b"", width, height, "")) as chunks:
                parts = [self._projector.part(chunk) for chunk in chunks]
            if len(self._parts) >= MAX_SIZES:
                self._parts.clear()
            self._parts[width, height] = parts
        return parts

    def n_tokens(self, image: Image) -> int:
        """Entries that an image takes in the context, with what stands around it."""
        return sum(p.n_tokens if isinstance(p, ImagePart) else len(p) for p in self._look(image).parts)

    def largest_image(self) -> tuple[int, int]:
        """(most image tokens of one part, most that one step must compute together) over the shapes of images."""
        most, together = 0, 0
        for width, height in _PROBES:
            for part in self._probe(width, height):
                most = max(most, part.n_tokens)
                together = max(together, part.n_tokens if part.non_causal else 0)
        return most, together

    def _probe(self, width: int, height: int) -> list[ImagePart]:
        return [part for part in self._parts_of(width, height) if isinstance(part, ImagePart)]

    def _trim(self) -> None:
        """Forgets the images used longest ago. One held elsewhere stays with its holder."""
        total = sum(seen.n_bytes for seen in self._seen.values())
        while total > CACHE_BYTES and len(self._seen) > 1:
            _, seen = self._seen.popitem(last=False)
            total -= seen.n_bytes
        if len(self._names) > 4 * max(64, len(self._seen)):
            for name in [name for name, key in self._names.items() if key not in self._seen]:
                del self._names[name]

    # -- encoding

    def scale_first(self, images: Sequence[Seen]) -> None:
        """Of the images still to be encoded, the first is scaled from now on, unless it is another one's turn."""
        wanted = [seen.image for seen in images if not seen.encoded and seen.image is not None]
        if any(image is self._scaled.image for image in wanted):
            return
        self._scaled.let_go()
        if wanted:
            self._scaled.begin(wanted[0])

    def is_scaling(self, images: Sequence[Seen]) -> bool:
        """Whether ``encode_one`` would wait, and others may compute meanwhile: not between images of one phase."""
        image = next((seen.image for seen in images if not seen.encoded), None)
        return image is not None and not self._phase_open and not self._scaled.done(image)

    def encode_one(self, images: Sequence[Seen], gen_id: int) -> bool:
        """Encodes the first part that is not yet; False: there was none left.

        Raises EncodeAborted after ``interrupt``, EngineError where it cannot be computed.
        """
        seen = next((seen for seen in images if not seen.encoded), None)
        if seen is None:
            return False
        run = next(index for index, embeddings in enumerate(seen.embeddings) if embeddings is None)
        self._phase_open = True
        with self._hearing(gen_id):
            self._bring_in(seen)
            seen.embeddings[run] = self._encode(seen, run)
        if seen.encoded:
            seen.image = None  # what was scaled of it goes with the next image, or with the phase
            self.n_encoded += 1
        return True

    @contextmanager
    def _hearing(self, gen_id: int) -> Iterator[None]:
        """Inside, an ``interrupt`` is heard."""
        with self._lock:
            self._at_work, self._aborted = gen_id, False
        try:
            yield
        finally:
            with self._lock:
                self._at_work = 0

    def _bring_in(self, seen: Seen) -> None:
        """The tower's copies, as long as the image is being scaled. Without a device it is only waited for."""
        if seen.image is None or self._scaled.done(seen.image):
            return
        self._scaled.begin(seen.image)
        try:
            self._device.begin_vision()
            while self._device.settle(PIECE_BYTES) and not self._scaled.done(seen.image):
                pass
        except DeviceError as error:
            logs.logger().warning("an image goes without the device", code=error.code, error=str(error))

    def _encode(self, seen: Seen, run: int) -> Embeddings:
        if seen.image is None:
            raise ImageError("an image of the conversation is gone", code="image_unknown")
        chunk = self._scaled.chunk(seen.image, run)
        n_tokens = seen.runs[run].n_tokens
        try:
            return self._compute(chunk, n_tokens)
        except EncodeFailed as error:  # a lost device: from now on it runs on the CPU
            logs.logger().warning("an image is encoded again", error=error.message)
            return self._compute(chunk, n_tokens)

    def _compute(self, chunk: Any, n_tokens: int) -> Embeddings:
        with self._lock:
            if self._aborted:
                raise EncodeAborted
            self._device.begin_step(n_tokens)
        try:
            return self._projector.encode(chunk, n_tokens)
        except EncodeFailed:
            if self._aborted:
                raise EncodeAborted from None
            raise

    def interrupt(self, gen_id: int | None = None) -> None:
        """Ends the encoding for ``gen_id`` (None: for anybody): before it begins, or at its next sub-layer."""
        with self._lock:
            if self._at_work and gen_id in (None, self._at_work):
                self._aborted = True
                self._device.abort_step()

    def end_phase(self) -> bool:
        """The last image is encoded: the device is the language model's again. False: it was already."""
        was_open, self._phase_open = self._phase_open, False
        if was_open:
            self._device.end_vision()  # first: from then on the language model's copies are on their way
        self._scaled.let_go()
        return was_open
