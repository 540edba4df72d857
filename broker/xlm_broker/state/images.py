"""Who holds which image, and for how long. Knows keys and sizes; the bytes are in a store outside.

An image is held by the leases that uploaded it, and *pinned* by conversations:
one whose history has the image, and an answer that was asked about it. What is
neither held nor pinned is dropped; to make room, what is held but not pinned
goes first that was used longest ago.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xlm.errors import ImageError, XlmError, from_code
from xlm.protocol import link, messages
from xlm.protocol.images import check_layout

from .actions import BeginUpload, DropImage, DropUpload, EndUpload, SendImagePart, StoreChunk
from .core import Client, Core


@dataclass(slots=True)
class Picture:
    """An image that is whole and verified."""

    layout: messages.ImageBegin
    owners: set[str] = field(default_factory=set)  # lease ids
    used: int = 0  # when last, on a clock of uses


@dataclass(slots=True)
class Upload:
    upload_id: int  # its name in the store
    lease_id: str
    layout: messages.ImageBegin
    received_bytes: int = 0
    end: tuple[bytes, int, str] | None = None  # client, id and cause of IMAGE_END: bytes are being verified


class Images:
    """``pinned()`` answers the keys that conversations need."""

    def __init__(self, core: Core, pinned: Callable[[], set[str]]) -> None:
        self._core = core
        self._pinned = pinned
        self._clock = 0
        self.pictures: dict[str, Picture] = {}
        self.uploads: dict[tuple[str, str], Upload] = {}  # by lease id and key
        self._unowned: set[str] = set()  # kept for conversations alone

    @property
    def stored_bytes(self) -> int:
        """Of all images, and of all uploads as they were announced: memory for them is promised."""
        whole = sum(picture.layout.total_bytes for picture in self.pictures.values())
        return whole + sum(upload.layout.total_bytes for upload in self.uploads.values())

    def _held_bytes(self, lease_id: str) -> int:
        whole = (p.layout.total_bytes for p in self.pictures.values() if lease_id in p.owners)
        return sum(whole) + sum(u.layout.total_bytes for u in self.uploads.values() if u.lease_id == lease_id)

    # -- requests -------------------------------------------------------------------

    def begin(self, client: Client, request: messages.ImageBegin) -> None:
        self._drop_upload(client.lease_id, request.key)
        picture = self.pictures.get(request.key)
        problem = self._refusal(request)
        if problem is None and picture is None:
            problem = self._room_for(client.lease_id, request)
        if problem is not None:
            return self._core.fail(client.identity, request.id, problem)
        if picture is not None:
            self._own(request.key, client.lease_id)
            return self._progress(client.identity, request, request.key, picture.layout.total_bytes, ready=True)
        upload = Upload(self._core.count(), client.lease_id, request)
        self.uploads[client.lease_id, request.key] = upload
        self._core.do(BeginUpload(upload.upload_id, request))
        return self._progress(client.identity, request, request.key, 0)

    def _refusal(self, request: messages.ImageBegin) -> XlmError | None:
        limit = self._core.settings.limits.max_image_bytes
        try:
            self.check_available()
            check_layout(request)
        except ImageError as error:
            return error
        if request.total_bytes > limit:
            return from_code("image_too_large", f"an image of {request.total_bytes} bytes is over {limit}")
        return None

    def check_available(self) -> None:
        """Raises ImageError (``vision_unavailable``)."""
        if not self._core.settings.model.mmproj:
            raise ImageError("this broker's model takes no images", code="vision_unavailable")

    def chunk(self, client: Client, request: messages.ImageChunk) -> None:
        upload = self.uploads.get((client.lease_id, request.key))
        if upload is None:
            return self._core.refuse(client.identity, request.id, "image_unknown", "no such upload was begun")
        problem = _misplaced(upload, request)
        if problem:
            self._drop_upload(client.lease_id, request.key)
            return self._core.refuse(client.identity, request.id, "image_upload_invalid", problem)
        upload.received_bytes += len(request.data)
        self._core.do(StoreChunk(upload.upload_id, request.data))
        return self._progress(client.identity, request, request.key, upload.received_bytes)

    def end(self, client: Client, request: messages.ImageEnd) -> None:
        upload = self.uploads.get((client.lease_id, request.key))
        if upload is None:
            return self._core.refuse(client.identity, request.id, "image_unknown", "no such upload was begun")
        missing = upload.layout.total_bytes - upload.received_bytes
        if missing or upload.end is not None:
            self._drop_upload(client.lease_id, request.key)
            text = f"{missing} bytes are missing" if missing else "the upload was ended before"
            return self._core.refuse(client.identity, request.id, "image_upload_invalid", text)
        upload.end = client.identity, request.id, self._core.cause
        self._core.do(EndUpload(upload.upload_id, request.key))
        return None

    def verified(self, upload_id: int, *, good: bool) -> None:
        """The store has looked at the bytes of an upload that was ended; they are gone where they were not good."""
        upload = next((one for one in self.uploads.values() if one.upload_id == upload_id), None)
        if upload is None or upload.end is None:  # forgotten meanwhile
            return
        key = upload.layout.key
        del self.uploads[upload.lease_id, key]
        identity, request_id, cause = upload.end
        if not good:
            error = from_code("image_hash_mismatch", "the bytes that came are not those of the key")
            return self._core.fail(identity, request_id, error, cause)
        self.pictures.setdefault(key, Picture(upload.layout))
        self._own(key, upload.lease_id)
        answer = messages.Image(id=request_id, cause=cause, key=key, received_bytes=upload.received_bytes, ready=True)
        return self._core.send(identity, answer)

    def check_say(self, client: Client, keys: list[str]) -> XlmError | None:
        """Why a turn with these images cannot be taken; else they count as used now."""
        if not keys:
            return None
        try:
            self.check_available()
        except ImageError as error:
            return error
        limit = self._core.settings.limits.max_images_per_say
        if len(keys) > limit:
            return from_code("too_many_images", f"{len(keys)} images in one turn, at most {limit} are taken")
        for key in keys:
            picture = self.pictures.get(key)
            if picture is None or client.lease_id not in picture.owners:
                return from_code("image_unknown", f"the broker does not have image {key[:16]}… of this client")
            self._touch(picture)
        return None

    def want(self, request: link.WantImage) -> None:
        """The engine asks for bytes."""
        picture = self.pictures.get(request.key)
        if picture is None:
            return self._core.to_engine(link.ImagePart(key=request.key))
        return self._core.do(SendImagePart(picture.layout, request.offset, request.max_bytes))

    # -- room -----------------------------------------------------------------------

    def _room_for(self, lease_id: str, request: messages.ImageBegin) -> XlmError | None:
        limits, pinned = self._core.settings.limits, self._pinned()
        while sum(owner == lease_id for owner, _ in self.uploads) >= limits.max_uploads:
            self._give_up_oldest(lease_id)  # given up by its client, most likely
        while self._held_bytes(lease_id) + request.total_bytes > limits.max_client_image_bytes or (
            sum(lease_id in picture.owners for picture in self.pictures.values()) >= limits.max_client_images
        ):
            if not self._evict(pinned, lease_id) and not self._give_up_oldest(lease_id):
                return from_code("image_store_full", f"this client holds {self._held_bytes(lease_id)} bytes of images")
        while self.stored_bytes + request.total_bytes > limits.max_image_store_bytes:
            if not self._evict(pinned, None) and not self._give_up_oldest(lease_id):
                return from_code("image_store_full", f"the store holds {self.stored_bytes} bytes of images")
        return None

    def _evict(self, pinned: set[str], lease_id: str | None) -> bool:
        """Drops the image used longest ago, of one client or of all. False: each is needed."""
        loose = [
            (picture.used, key)
            for key, picture in self.pictures.items()
            if key not in pinned and (lease_id is None or lease_id in picture.owners)
        ]
        if not loose:
            return False
        key = min(loose)[1]
        owners = self.pictures[key].owners
        owners.clear() if lease_id is None else owners.discard(lease_id)
        self._drop_if_loose(key, pinned)
        return True

    def _give_up_oldest(self, lease_id: str) -> bool:
        """Of the client's unfinished uploads. False: there is none."""
        oldest = next((key for owner, key in self.uploads if owner == lease_id), None)
        if oldest is not None:
            self._drop_upload(lease_id, oldest)
        return oldest is not None

    def _drop_if_loose(self, key: str, pinned: set[str]) -> None:
        if self.pictures[key].owners:
            return
        self._unowned.add(key)
        if key not in pinned:
            del self.pictures[key]
            self._unowned.discard(key)
            self._core.do(DropImage(key))

    def _own(self, key: str, lease_id: str) -> None:
        self.pictures[key].owners.add(lease_id)
        self._unowned.discard(key)
        self._touch(self.pictures[key])

    def _touch(self, picture: Picture) -> None:
        self._clock += 1
        picture.used = self._clock

    # -- ends -----------------------------------------------------------------------

    def lease_ended(self, client: Client) -> None:
        for lease_id, key in [name for name in self.uploads if name[0] == client.lease_id]:
            self._drop_upload(lease_id, key)
        for key, picture in self.pictures.items():
            picture.owners.discard(client.lease_id)
            if not picture.owners:
                self._unowned.add(key)

    def sweep(self) -> None:
        """After each event: what nobody holds and no conversation needs any more is dropped."""
        if self._unowned:
            pinned = self._pinned()
            for key in list(self._unowned):
                self._drop_if_loose(key, pinned)

    def _drop_upload(self, lease_id: str, key: str) -> None:
        upload = self.uploads.pop((lease_id, key), None)
        if upload is not None:
            self._core.do(DropUpload(upload.upload_id))
            if upload.end is not None:  # verified for nobody: its IMAGE_END still gets an answer
                identity, request_id, cause = upload.end
                error = from_code("image_upload_invalid", "the upload began anew")
                self._core.fail(identity, request_id, error, cause)

    def _progress(
        self, identity: bytes, request: messages.Message, key: str, received_bytes: int, *, ready: bool = False
    ) -> None:
        answer = messages.Image(
            id=request.id, cause=self._core.cause, key=key, received_bytes=received_bytes, ready=ready
        )
        self._core.send(identity, answer)

    def validate(self) -> None:
        limits, leases = self._core.settings.limits, {client.lease_id for client in self._core.clients.values()}
        assert self.stored_bytes <= limits.max_image_store_bytes, "more images than the store may hold"
        for (lease_id, key), upload in self.uploads.items():
            assert lease_id in leases, "an upload without a lease"
            assert (lease_id, key) == (upload.lease_id, upload.layout.key)
            assert 0 <= upload.received_bytes <= upload.layout.total_bytes
        pinned = self._pinned()
        for key, picture in self.pictures.items():
            assert picture.owners <= leases, "an image of a lease that has ended"
            assert picture.owners or key in pinned, "an image nobody needs"
            assert bool(picture.owners) == (key not in self._unowned)
        assert pinned <= set(self.pictures), "a conversation without its images"


def _misplaced(upload: Upload, request: messages.ImageChunk) -> str:
    """What is wrong with where a chunk goes; empty: nothing."""
    if upload.end is not None:
        return "the upload was ended before"
    if request.offset != upload.received_bytes:
        return f"a chunk at {request.offset}, the next byte is {upload.received_bytes}"
    if request.offset + len(request.data) > upload.layout.total_bytes:
        return f"more than the {upload.layout.total_bytes} bytes that were announced"
    return ""
