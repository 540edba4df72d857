"""Where ``xlm`` and ``xlm-broker`` begin. What they import takes a second: Ctrl-C ends that without a word."""

from __future__ import annotations

import signal


def xlm() -> None:
    handler = _quietly()
    from xlm_broker.cli.tools import main

    signal.signal(signal.SIGINT, handler)
    main()


def xlm_broker() -> None:
    handler = _quietly()
    from xlm_broker.cli.broker import main

    signal.signal(signal.SIGINT, handler)
    main()


def _quietly() -> signal._HANDLER:
    """The handler of before. A signal that whoever started us wants ignored stays ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return handler
