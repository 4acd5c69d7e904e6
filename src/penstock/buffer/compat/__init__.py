"""The HTTP API of the seed's rollout buffer, over the same ledger and store as everything else."""
