"""The learner: from a packed batch to new weights, and to files that a later life continues from.

- `config`: `LearnerConfig`, `LossConfig`, `GateConfig`. Importable without torch.
- `step`: `Learner`, whose `step` is the whole arithmetic of one update; `StepResult`.
- `losses`, `denominators`: what is minimised, by name, and how it is averaged. `reference`: the policy that a KL is measured against.
- `selection`, `credit`: from fetched groups to samples with advantages. `stats`: what an update says about itself.
- `assess`: what an update would say about itself, of batches that are not trained on.
- `gate`: agreement of the sampler's logprobs with the learner's. `snapshots`: older weights to compare under.
- `checkpoints`: `Checkpoints`, directories that are complete or invisible.

Everything but the configs needs torch and is imported from its module.
"""

from penstock.learner.config import GateConfig, LearnerConfig, LossConfig

__all__ = ["GateConfig", "LearnerConfig", "LossConfig"]
