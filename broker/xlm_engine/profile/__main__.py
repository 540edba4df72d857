"""``python -m xlm_engine.profile``: reads a Request on stdin, writes messages on stdout. Not for users."""

from __future__ import annotations

import faulthandler
import os
import sys

import msgspec

from xlm._threads import share_cores
from xlm.errors import RequestError, XlmError
from xlm_engine.profile.wire import Channel


def _private_stdout() -> int:
    """Keeps stdout for messages: whatever a driver prints goes to stderr instead."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def main() -> int:
    """Exit status 0 when done, 3 after Failed was sent."""
    faulthandler.enable()
    share_cores()  # as the engine does
    with os.fdopen(_private_stdout(), "wb") as sink:
        channel = Channel(sys.stdin.buffer, sink)
        try:
            _serve(channel)
        except msgspec.MsgspecError as error:
            channel.fail(RequestError(f"not understood: {error}", code="bad_request"))
            return 3
        except (XlmError, OSError) as error:
            channel.fail(error)
            return 3
    return 0


def _serve(channel: Channel) -> None:
    request = channel.request()
    from xlm_engine.profile.session import Session  # loads ggml

    session = Session(request, channel)
    channel.send(session.identity)
    if request.identify_only:
        return
    try:
        session.run(channel.known())
    finally:
        session.close()


if __name__ == "__main__":
    sys.exit(main())
