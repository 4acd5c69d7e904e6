"""The embedded engine: continuous batching on torch, fp32 on CPU, for the Llama, Qwen2 and Qwen3 families.

- `architecture`, `packing`, `rotary`, `forward`: the model as plain functions on tensors.
- `pools`, `prefixes`, `prefill`: keys and values of running replies, and of prompts that several of them share.
- `sampling`, `stops`, `requests`: from logits to tokens to the end of a reply.
- `core`: the engine itself. Importing it imports torch.
"""
