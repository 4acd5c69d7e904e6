"""Models in torch: loading, identity of weights, attention over prefix trees. Used by the learner, and by whoever needs weights or their digest.

- `load_model`, `init_model`: a Hugging Face causal-LM directory of the Llama or Qwen families as a module; a small new one.
- `model_tensors`, `check_tensors`, `load_tensors`: the tensors of a module by name, tied ones once.
- `weights_digest`, `read_weights`, `write_weights`, `weights_path`, `keep_weights`: what names and holds a set of weights.
- `TreeLayout`, `tree_layout`, `tree_hidden`, `token_scores`, `token_logprobs`: exact passes over packed prefix trees through the unmodified classes.
- `Demonstration`, `WarmUpConfig`, `warm_up`: supervised training on (prompt, reply) pairs.

Importing this package imports torch; transformers is imported when a model is loaded or made.
"""

from penstock.models.creation import SIZES, init_model
from penstock.models.loading import FAMILIES, load_model
from penstock.models.scores import TokenScores, token_logprobs, token_scores
from penstock.models.tree import TREE_ATTENTION, TreeLayout, tree_hidden, tree_layout
from penstock.models.warmup import Demonstration, WarmUpConfig, WarmUpResult, warm_up
from penstock.models.weights import (
    Tensors,
    check_tensors,
    keep_weights,
    load_tensors,
    model_tensors,
    read_weights,
    sync,
    weights_digest,
    weights_path,
    write_weights,
)

__all__ = [
    "FAMILIES",
    "SIZES",
    "TREE_ATTENTION",
    "Demonstration",
    "Tensors",
    "TokenScores",
    "TreeLayout",
    "WarmUpConfig",
    "WarmUpResult",
    "check_tensors",
    "init_model",
    "keep_weights",
    "load_model",
    "load_tensors",
    "model_tensors",
    "read_weights",
    "sync",
    "token_logprobs",
    "token_scores",
    "tree_hidden",
    "tree_layout",
    "warm_up",
    "weights_digest",
    "weights_path",
    "write_weights",
]
