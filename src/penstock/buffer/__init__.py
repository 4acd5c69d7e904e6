"""The buffer: the durable store, the laws over it, and the service that offers both."""
