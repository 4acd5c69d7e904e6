"""The segment tree of an episode: recorded once by `Recorder`, read through views."""

from penstock.trace.tree import Node, PrefixTree, prefix_tree

__all__ = ["Node", "PrefixTree", "prefix_tree"]
