"""Images: the vision tower of a model on the cache device, and how its embeddings get into a conversation."""
