"""Inference: an engine of our own behind an OpenAI-compatible server, and the client that other parts use.

- `client`: what rollout workers and the learner call. Needs no torch.
- `config`: the settings of a server.
- `server`: `serve(config)` runs one. Loads torch when it starts, not before.
- `engine`: the embedded engine, torch.

`python -m penstock.inference --model DIR --port P` starts a server.
"""
