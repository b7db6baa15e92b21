"""An emulated vLLM fleet: step-time model, prefix cache, KV link. Of use alone: imports nothing of ours."""
