"""xlm: a game and a language model share one GPU.

    import xlm
    with xlm.connect(name="tavern") as client:
        client.set_budget("96MiB", deadline_ms=16)
        with client.open_session(system="You are Greta, a blacksmith.") as npc:
            for piece in npc.say("Can you repair my sword?"):
                print(piece, end="", flush=True)

Errors are in ``xlm.errors``; a fake broker for your own tests in ``xlm.testing``.
"""

from xlm import errors
from xlm._async import AsyncClient, AsyncSession, AsyncTicket, aconnect
from xlm._client import Client, Session, Ticket, connect
from xlm._sizes import format_size, parse_size
from xlm._status import Status
from xlm._stream import AsyncReply, Reply
from xlm._version import __version__
from xlm.errors import (
    BrokerError,
    BudgetError,
    Cancelled,
    ContextOverflow,
    DeviceError,
    EndpointError,
    EngineError,
    GenerationError,
    ImageError,
    ModelError,
    ProtocolError,
    RequestError,
    SessionError,
    XlmError,
)
from xlm.protocol.messages import Lease, Notice, Usage

__all__ = [
    "AsyncClient",
    "AsyncReply",
    "AsyncSession",
    "AsyncTicket",
    "BrokerError",
    "BudgetError",
    "Cancelled",
    "Client",
    "ContextOverflow",
    "DeviceError",
    "EndpointError",
    "EngineError",
    "GenerationError",
    "ImageError",
    "Lease",
    "ModelError",
    "Notice",
    "ProtocolError",
    "Reply",
    "RequestError",
    "Session",
    "SessionError",
    "Status",
    "Ticket",
    "Usage",
    "XlmError",
    "__version__",
    "aconnect",
    "connect",
    "errors",
    "format_size",
    "parse_size",
]
