"""vLLM's own load generator through the router, unchanged."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from trimtab.vllm_cpu.engine import MODEL
from trimtab.vllm_cpu.install import Home

from .router import Router

PROMPTS = 12


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllm_bench_serve_works_unchanged(home: Home, router: Router, backend: str, endpoint: str):
    command = [str(home.vllm), "bench", "serve", "--backend", backend, "--endpoint", endpoint]
    command += ["--base-url", router.url, "--model", MODEL, "--tokenizer", str(home.model)]
    command += ["--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8"]
    command += ["--num-prompts", str(PROMPTS), "--request-rate", "4"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "HF_HUB_OFFLINE": "1"},
        cwd=home.folder,
    )
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) requests: +(\d+)", done.stdout, re.MULTILINE)}
    assert done.returncode == 0, done.stderr[-2000:]
    assert counts == {"Successful": PROMPTS, "Failed": 0}, done.stdout[-2000:]
