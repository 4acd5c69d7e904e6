"""Sessions between any agent and any engine: the agent speaks OpenAI's chat completions, the gateway keeps the tokens.

    agent --messages--> gateway --token ids--> engine
                           |  every reply is journalled before the agent sees it
                           +--> buffer: one rollout for each session

- `serving.serve_gateway`: the process behind `penstock gateway`.
- `local.AgentHost`: the same inside a rollout worker, which starts the agent itself.
"""
