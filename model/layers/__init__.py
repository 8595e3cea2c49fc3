"""The pieces a decoder layer is made of, as functions over flat batches `[num_tokens, …]`; no state, no KV cache."""
