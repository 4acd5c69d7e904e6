"""Weights on their way to the servers. The bytes lie in `weights/<digest>.safetensors`; what travels is their name."""

from penstock.weights.client import Broadcaster

__all__ = ["Broadcaster"]
