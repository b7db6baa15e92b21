"""One real engine: `vllm serve` with the tiny model as a process group on the loopback.

The group ends with `stop` (SIGTERM, in-flight requests end), with `kill` (SIGKILL, as a node that dies), or with
this process, however that ends (see `guard`).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import urllib.request
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

from . import guard
from .install import Home

MODEL = "tiny"
"""The name that the engines serve."""
HEALTHY_S = 300.0
STOP_S = 15.0
TAIL_LINES = 15
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")

log = logging.getLogger("trimtab.vllm_cpu")

Role = Literal["prefill", "decode", "replica"]


class EngineError(RuntimeError):
    """An engine did not start; the message holds its last log lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What may differ from engine to engine.

    `kv_events` and `kv_events_replay` are ZMQ endpoints. vLLM binds `tcp://*:PORT` and `ipc://PATH`, and connects to
    any other publishing endpoint, which the reader then binds; it always binds the one for replays.
    """

    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    kv_lease_duration_s: int = 30
    kv_cache_bytes: int = 256 * 2**20
    """In float32 4096 bytes a token: 65 536 tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In bfloat16 a prompt computed in other pieces, or in another batch, may get another greedy answer."""
    block_tokens: int = 32
    max_model_len: int = 8192
    max_num_seqs: int = 16
    prefix_caching: bool = True
    kv_events: str | None = None
    kv_events_replay: str | None = None
    extra_args: tuple[str, ...] = ()
    """More flags of `vllm serve`."""
    extra_environment: tuple[tuple[str, str], ...] = ()


class Engine:
    """A process that can be started again and again under the same name, address and options."""

    def __init__(
        self,
        name: str,
        role: Role,
        port: int,
        side_port: int,
        core: int,
        options: EngineOptions,
        *,
        home: Home,
        logs: Path,
    ) -> None:
        self.name, self.role, self.port, self.side_port, self.core = name, role, port, side_port, core
        self.options = options
        self.home = home
        self.log_file = logs / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._starts = 0

    @property
    def url(self) -> str:
        """Where it serves; without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether its process runs, healthy or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Leader of its process group."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def engine_id(self) -> str:
        """What NIXL calls the process. Each start has its own, as by vLLM's default: a D that knows the old process
        would read from an address that is no more."""
        return self.name if self._starts < 2 else f"{self.name}.{self._starts}"

    def command(self) -> list[str]:
        """`vllm serve` and its flags."""
        options = self.options
        arguments = [
            *(str(self.home.python), "-W", "ignore", str(self.home.vllm), "serve", str(self.home.model)),
            *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", options.dtype, "--enforce-eager", "--distributed-executor-backend", "uni"),
            *("--max-model-len", str(options.max_model_len), "--max-num-seqs", str(options.max_num_seqs)),
            *("--kv-cache-memory-bytes", str(options.kv_cache_bytes), "--block-size", str(options.block_tokens)),
            "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching",
            *("--enable-prompt-tokens-details", "--enable-request-id-headers"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ]
        if self.role != "replica":
            arguments += ["--kv-transfer-config", json.dumps(self._transfer())]
        if options.kv_events is not None:
            arguments += ["--kv-events-config", json.dumps(self._events())]
        return [*arguments, *options.extra_args]

    def _transfer(self) -> dict[str, object]:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}[self.role],
            "engine_id": self.engine_id,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": self.options.kv_load_failure_policy,
            "kv_connector_extra_config": {"kv_lease_duration": self.options.kv_lease_duration_s},
        }

    def _events(self) -> dict[str, object]:
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.options.kv_events}
        if self.options.kv_events_replay is not None:
            events["replay_endpoint"] = self.options.kv_events_replay
        return events

    def environment(self) -> dict[str, str]:
        """All that the engine sees: loopback only, no telemetry, no downloads, one core, caches in its own folder."""
        cache = self.home.cache
        outside = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        return {
            **outside,
            "VLLM_CPU_OMP_THREADS_BIND": str(self.core),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process fewer: faster start, less memory
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "lo",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HOME": str(cache / "huggingface"),
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "VLLM_CONFIG_ROOT": str(cache / "config"),
            "XDG_CACHE_HOME": str(cache),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "PYTHONUNBUFFERED": "1",
            **dict(self.options.extra_environment),
        }

    def start(self) -> None:
        """Start the process; does not wait. Raises EngineError without an installation, or if it runs already."""
        if self.alive:
            raise EngineError(f"{self.name} runs already")
        if missing := self.home.missing():
            raise EngineError(missing)
        self._let_go()
        self._starts += 1
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        pipe, self._pipe = os.pipe()
        try:
            with self.log_file.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", guard.__file__, str(pipe), *self.command()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self.environment(),
                    pass_fds=(pipe,),
                    start_new_session=True,
                )
        finally:
            os.close(pipe)
        log.info(
            "%s (%s) starts at %s, pid %d, log %s", self.name, self.role, self.url, self._process.pid, self.log_file
        )

    def healthy(self) -> bool:
        """Whether it answers `/health` now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def wait_healthy(self, timeout_s: float = HEALTHY_S) -> None:
        """Return once it serves. Raises EngineError with its last log lines if it ends or takes too long."""
        end_s = monotonic() + timeout_s
        while True:
            if not self.alive:
                raise EngineError(f"{self.name} ended while it started:\n{self.last_lines()}")
            if self.healthy():
                return
            if monotonic() > end_s:
                raise EngineError(f"{self.name} is not healthy after {timeout_s:g} s:\n{self.last_lines()}")
            sleep(0.2)

    def tell_to_stop(self) -> None:
        """SIGTERM; does not wait. No error if it does not run."""
        if self._process is not None and self.alive:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End it in its own way, or after `timeout_s` in ours. No error if it does not run."""
        if self._process is not None and self.alive:
            self.tell_to_stop()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._let_go()

    def kill(self) -> None:
        """SIGKILL to all of it at once. No error if it does not run."""
        if self._process is not None and self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._let_go()

    def restart(self, options: EngineOptions | None = None) -> None:
        """Stop if it runs, start again (with other options), wait until it serves. Its KV cache is empty then."""
        self.stop()
        if options is not None:
            self.options = options
        self.start()
        self.wait_healthy()

    def last_lines(self, count: int = TAIL_LINES) -> str:
        """The end of its log without lines that could hold anything of a prompt."""
        try:
            with self.log_file.open(encoding="utf-8", errors="replace") as lines:
                safe = deque((line.rstrip() for line in lines if not _tells(line)), maxlen=count)
        except OSError:
            return "(no log)"
        return "\n".join(safe) or "(the log is empty)"

    def _let_go(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _tells(line: str) -> bool:
    return any(word in line for word in ("prompt", "messages", "content"))
