"""Batching, pure: which groups make up a batch (`budget`), and how their samples lie in rows (`packing`)."""

from penstock.batching.budget import Candidate, Choice, Short, choose
from penstock.batching.packing import cost, fill_ratio, micro_batches, pack, rank_rows

__all__ = ["Candidate", "Choice", "Short", "choose", "cost", "fill_ratio", "micro_batches", "pack", "rank_rows"]
