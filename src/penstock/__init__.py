"""Penstock: asynchronous reinforcement-learning post-training of LLM agents.

    problems -> agents in envs -> traces -> BUFFER -> credit -> batch -> LEARNER -> weights -> inference
                      ^                                                                            |
                      +----------------------------- samples from ---------------------------------+

Nothing lost, nothing repeated, nothing silently wrong. `penstock.types` is the glossary; `docs/concepts.md` explains it.
"""

__version__ = "0.1.0"
