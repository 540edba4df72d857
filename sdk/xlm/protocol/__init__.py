"""The wire: messages, codec with limits, endpoints and keys. Shared by SDK and broker."""
