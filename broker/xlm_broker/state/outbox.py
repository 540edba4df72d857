"""What is kept for a client whose send queue is full: bounded, whatever happens on our side."""

from __future__ import annotations

from dataclasses import dataclass, field

from xlm.protocol import messages

# A merged TOKENS stays far below the frame limit (4 bytes of UTF-8 a character, 5 of msgpack a token id).
MERGED_CHARS = 1 << 16
MERGED_TOKENS = 1 << 14
_MESSAGE_BYTES = 1 << 10  # of a message without text, generously
_TOKEN_BYTES = 40  # of a list's slot and its int


@dataclass(slots=True)
class Outbox:
    """Messages in order of sending; text of one answer grows in place, notices and pongs replace their elders."""

    limit: int  # messages
    limit_bytes: int
    items: list[messages.Message] = field(default_factory=list)
    size_bytes: int = 0  # estimate of what the items weigh

    def put(self, message: messages.Message) -> bool:
        """Keeps the message; False when that would go over a limit (nothing is kept then)."""
        self._drop_elder(message)
        if len(self.items) >= self.limit or self.size_bytes + _weight(message) > self.limit_bytes:
            return False
        self.items.append(message)
        self.size_bytes += _weight(message)
        return True

    def extend(self, answer_id: int, text: str, token_ids: list[int]) -> bool:
        """Adds to the pending TOKENS of an answer; False if there is none with room."""
        for item in reversed(self.items):
            if isinstance(item, messages.Done | messages.Error) and item.id == answer_id:
                return False  # an earlier answer under the same id
            if isinstance(item, messages.Tokens) and item.id == answer_id:
                if self.size_bytes + _text_weight(text, token_ids) > self.limit_bytes:
                    return False
                if len(item.text) + len(text) > MERGED_CHARS or len(item.token_ids) + len(token_ids) > MERGED_TOKENS:
                    return False
                self.size_bytes += _text_weight(text, token_ids)
                item.text += text
                item.token_ids = item.token_ids + token_ids
                return True
        return False

    def sound(self) -> bool:
        """Within its limits, and the running sum is the sum."""
        weighed = sum(_weight(item) for item in self.items)
        return len(self.items) <= self.limit and self.size_bytes == weighed <= self.limit_bytes

    def _drop_elder(self, message: messages.Message) -> None:
        if isinstance(message, messages.Notice | messages.Pong):
            elders = [item for item in self.items if _same_news(item, message)]
            self.items = [item for item in self.items if item not in elders]
            self.size_bytes -= sum(_weight(item) for item in elders)


def _same_news(old: messages.Message, new: messages.Message) -> bool:
    if isinstance(old, messages.Notice) and isinstance(new, messages.Notice):
        return old.kind == new.kind
    return isinstance(old, messages.Pong) and isinstance(new, messages.Pong)


def _weight(message: messages.Message) -> int:
    if isinstance(message, messages.Tokens):
        return _MESSAGE_BYTES + _text_weight(message.text, message.token_ids)
    return _MESSAGE_BYTES


def _text_weight(text: str, token_ids: list[int]) -> int:
    return len(text) * (1 if text.isascii() else 4) + len(token_ids) * _TOKEN_BYTES
