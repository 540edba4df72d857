"""The engine: the child process that owns the device and the model. Started by the broker, never by users."""
