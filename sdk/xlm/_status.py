"""What ``client.status()`` answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from xlm.protocol import messages


@dataclass(frozen=True, slots=True)
class Status(Mapping[str, Any]):
    """A snapshot. ``status.device["used_bytes"]`` and ``status["device"]["used_bytes"]`` are the same.

    The maps' keys are listed in docs/protocol.md; a key a broker does not report is absent.
    """

    broker: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    clients: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    throughput: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: messages.Status) -> Status:
        return cls(**{part.name: getattr(message, part.name) for part in fields(cls)})

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
