"""Tests. A package, so that `python -m tests.simulation` finds its own parts and nobody else's."""
