"""Every error xlm raises.

XlmError
├── RequestError            fault: caller
│   ├── ProtocolError       a message that is not understood, too large or out of order
│   ├── BudgetError         a budget that cannot be granted
│   ├── SessionError        unknown, closed or busy session
│   ├── ContextOverflow     the conversation no longer fits its context
│   ├── GenerationError     bad sampling options, grammar, template
│   ├── ProfileError        a measured profile that is missing, damaged or of another machine
│   ├── ShapeError          facts of a model or machine that cannot be right
│   └── ImageError          an image that cannot be taken, or a model that sees none
├── EndpointError           fault: caller   (address in use, too long, not on this machine)
├── ModelError              fault: model    (the file)
├── DeviceError             fault: device   (lost, out of memory, not found)
├── EngineError             fault: engine   (the inference process)
├── BrokerError             fault: broker   (gone, internal, timed out)
└── Cancelled               fault: caller   (the answer was cancelled)

Each has ``code`` (stable, for programs), ``fault`` (whose), ``retryable`` (the
same call may succeed later), ``message`` and ``hint`` (what to do next). The
table ``CODES`` is the one definition; the wire carries the code.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from xlm._commands import to_type

Fault = Literal["caller", "broker", "engine", "device", "model"]


class XlmError(Exception):
    """Base of all errors. ``str(error)`` is the message and, if there is one, the hint with commands as typed here."""

    fault: Fault = "broker"

    def __init__(self, message: str, *, code: str = "internal", hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(message)
        known = CODES.get(code)
        self.message: Final = message
        self.code: Final = code
        self.hint: Final = hint or (known.hint if known else "")
        self.retryable: Final = known.retryable if retryable is None and known else bool(retryable)

    def __str__(self) -> str:
        return f"{self.message} ({to_type(self.hint)})" if self.hint else self.message


class RequestError(XlmError):
    fault: Fault = "caller"


class ProtocolError(RequestError):
    """``request_id``: the id of the message at fault, 0 where it has none or it cannot be read."""

    request_id: int = 0


class BudgetError(RequestError):
    """``minimum_bytes``: the smallest budget that would do, where one is known."""

    minimum_bytes: int | None = None


class SessionError(RequestError):
    pass


class ContextOverflow(RequestError):
    pass


class GenerationError(RequestError):
    pass


class ProfileError(RequestError):
    pass


class ShapeError(RequestError):
    pass


class ImageError(RequestError):
    pass


class EndpointError(RequestError):
    pass


class ModelError(XlmError):
    fault: Fault = "model"


class DeviceError(XlmError):
    fault: Fault = "device"


class EngineError(XlmError):
    fault: Fault = "engine"


class BrokerError(XlmError):
    fault: Fault = "broker"


class Cancelled(XlmError):
    fault: Fault = "caller"


class Code(NamedTuple):
    error: type[XlmError]
    retryable: bool
    hint: str


CODES: Final[dict[str, Code]] = {
    # protocol
    "bad_request": Code(ProtocolError, False, "compare the message with docs/protocol.md"),
    "unknown_type": Code(ProtocolError, False, "compare the message with docs/protocol.md"),
    "frame_too_large": Code(ProtocolError, False, "a frame holds at most 1 MiB"),
    "protocol_version": Code(ProtocolError, False, "update the older of SDK and broker"),
    "not_connected": Code(ProtocolError, False, "send HELLO first"),
    "lease_expired": Code(
        ProtocolError, True, "an SDK connects again by itself and takes up sessions and budget; ask again then"
    ),
    "too_many_clients": Code(RequestError, True, "close a client first"),
    "option_invalid": Code(RequestError, False, "see the command's --help"),
    # budgets
    "budget_infeasible": Code(BudgetError, False, "ask for at least the stated minimum, or allow the CPU"),
    "budget_invalid": Code(BudgetError, False, "a size is a whole number of bytes, or like 96MiB, 1.5GiB"),
    # planning
    "profile_missing": Code(ProfileError, False, "measure this machine once: xlm profile"),
    "profile_corrupt": Code(ProfileError, False, "delete the file and measure again: xlm profile"),
    "profile_stale": Code(ProfileError, False, "measure again: xlm profile"),
    "shape_invalid": Code(ShapeError, False, "check the model's facts"),
    "machine_invalid": Code(ShapeError, False, "check the machine's facts; docs/timing-model.md lists the known cards"),
    # sessions and text
    "session_unknown": Code(SessionError, False, "open a session first"),
    "session_busy": Code(SessionError, True, "wait for the answer in progress, or cancel it"),
    "too_many_sessions": Code(SessionError, True, "close a session that nobody talks in any more"),
    "context_overflow": Code(
        ContextOverflow, False, "start a new session, raise --ctx, or open it with overflow='shift'"
    ),
    "sampling_invalid": Code(GenerationError, False, ""),
    "grammar_invalid": Code(GenerationError, False, "check the GBNF grammar or JSON schema"),
    "template_invalid": Code(
        GenerationError, False, "the model's chat template cannot be used; pass another with --chat-template"
    ),
    "cancelled": Code(Cancelled, False, ""),
    # endpoints
    "endpoint_in_use": Code(
        EndpointError, False, "another broker serves this endpoint; stop it or choose another --endpoint"
    ),
    "endpoint_invalid": Code(EndpointError, False, "use ipc:///path/to/socket or tcp://127.0.0.1:PORT"),
    "endpoint_too_long": Code(EndpointError, False, "a socket path holds at most 107 bytes; choose a shorter folder"),
    "endpoint_not_local": Code(
        EndpointError, False, "the broker listens on this machine only: tcp://127.0.0.1 or [::1], or ipc://"
    ),
    "endpoint_forbidden": Code(EndpointError, False, "the socket folder must be yours and writable"),
    # images
    "image_corrupt": Code(ImageError, False, "the file cannot be decoded; open it in a viewer to check it"),
    "image_empty": Code(ImageError, False, "an image has at least one pixel"),
    "image_too_large": Code(ImageError, False, "scale the image down"),
    "image_animated": Code(ImageError, False, "send one frame of it"),
    "image_unsupported": Code(ImageError, False, "send PNG, JPEG, WebP, BMP or GIF, grey or RGB, 8 bits a channel"),
    "image_unknown": Code(ImageError, True, "upload the image first"),
    "image_upload_invalid": Code(ImageError, False, "chunks follow each other without gap or overlap"),
    "image_hash_mismatch": Code(ImageError, False, "the bytes are not those the key names; upload them again"),
    "image_store_full": Code(ImageError, True, "close conversations with images, or raise --image-store"),
    "too_many_images": Code(
        ImageError, False, "send fewer images, or raise --ctx (context) or --images-per-say (one turn)"
    ),
    "vision_unavailable": Code(ImageError, False, "start the broker with the model's projector: --mmproj P.gguf"),
    # model files
    "model_not_found": Code(ModelError, False, "check the path"),
    "model_is_directory": Code(ModelError, False, "name the .gguf file, not its folder"),
    "model_unreadable": Code(ModelError, False, "check the file's permissions"),
    "model_empty": Code(ModelError, False, "download the file again"),
    "model_bad_magic": Code(ModelError, False, "this is no GGUF file"),
    "model_truncated": Code(ModelError, False, "the file is shorter than its header says; download it again"),
    "model_unknown_architecture": Code(ModelError, False, "this llama.cpp does not know the model; a newer one may"),
    "model_missing_tokenizer": Code(ModelError, False, "the file lacks tokenizer data; convert the model again"),
    "model_too_large": Code(ModelError, False, "weights live in host memory; use a smaller model or quantisation"),
    "model_invalid": Code(ModelError, False, "llama.cpp cannot load this file"),
    "projector_not_found": Code(ModelError, False, "check the path of --mmproj"),
    "projector_invalid": Code(ModelError, False, "this is no projector file, or a damaged one; download it again"),
    "projector_mismatch": Code(ModelError, False, "take the projector that belongs to this model"),
    # devices
    "device_not_found": Code(DeviceError, False, "run `xlm doctor`"),
    "device_lost": Code(DeviceError, True, "generation goes on on the CPU; the device is tried again"),
    "device_out_of_memory": Code(DeviceError, True, "generation goes on with less on the device"),
    "abi_mismatch": Code(DeviceError, False, "rebuild the native libraries: make setup"),
    # engine and broker
    "engine_starting": Code(EngineError, True, "wait until the model is loaded"),
    "engine_restarting": Code(EngineError, True, "wait; conversations are restored"),
    "engine_failed": Code(EngineError, False, "it died too often in a row; see the broker's log"),
    "broker_gone": Code(
        BrokerError, True, "connecting goes on by itself; is `xlm-broker --model demo --budget-from-game` running?"
    ),
    "timeout": Code(BrokerError, True, ""),
    "overloaded": Code(BrokerError, True, "too many requests in flight; slow down"),
    "internal": Code(BrokerError, False, "please report this with the broker's log"),
    "not_ready": Code(
        BrokerError, True, "wait for the connection, or start a broker: `xlm-broker --model demo --budget-from-game`"
    ),
}


def from_code(code: str, message: str, *, hint: str = "", minimum_bytes: int | None = None) -> XlmError:
    """The typed error for a wire code; an unknown code (a newer broker) becomes a BrokerError that keeps it."""
    known = CODES.get(code, Code(BrokerError, False, ""))
    error = known.error(message, code=code, hint=hint)
    if isinstance(error, BudgetError):
        error.minimum_bytes = minimum_bytes
    return error
