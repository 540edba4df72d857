"""Command lines: ``xlm-broker`` (broker) and ``xlm`` (tools)."""
