"""vLLM's own V1 scheduler as a node of the emulated fleet, in virtual time.

`VllmEngine` has the surface of `emulator.engine.Engine` that the fleet and the simulation use. Inside is vLLM's
`Scheduler` with its `KVCacheManager` (block pool, prefix cache, preemption, chunked prefill, requests that wait for
remote KV) and the scheduler's side of vLLM's `NixlConnector`, driven as `EngineCore.step` drives them: schedule,
execute, apply aborts, update, take new requests. Only what executes is replaced: a step takes what
`emulator.profiles.StepTime` says for what vLLM put into it, tokens are dummies, a transfer is the fleet's, and the HTTP
front's time is the profile's. A step without tokens takes no time.

A prompt's blocks are named by segment and position instead of by a hash over their tokens. Runs under the Python that
has vLLM; left out: asynchronous scheduling (the next step is composed before the last one's tokens are known), CUDA
graphs, heartbeats (the fleet's lease knows its reader), the notice that frees a prompt of a reader that left, KV
events, and hand-overs other than NIXL's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from math import inf
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
if (_kept := Path(sys.prefix).parent / "cache" / "vllm").is_dir():  # what engines may write, as in vllm_cpu/install.py
    os.environ.setdefault("VLLM_CACHE_ROOT", str(_kept))

import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from emulator.engine import Job, Kind
from emulator.events import Events
from emulator.prefix_cache import Prompt, prompt_tokens
from emulator.profiles import EngineProfile, StepTime

TOKEN = 7
"""What every prompt and every answer is made of."""
KV_ROLES = {"P": "kv_producer", "D": "kv_consumer", "pD": "kv_consumer"}
_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
_RECEIVE = {
    "do_remote_decode": False,
    "do_remote_prefill": True,
    "remote_block_ids": ([1],),
    "remote_engine_id": "P",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}


@dataclass(slots=True)
class _Step:
    start_s: float
    output: SchedulerOutput
    sampled: list[list[int]]


class VllmEngine:
    """A node of the fleet: `name` begins with its role."""

    def __init__(self, name: str, profile: EngineProfile, events: Events) -> None:
        self.name = name
        self.profile = profile
        self.alive = True
        self.recomputes = False
        self.epoch = 0
        self.busy_s = 0.0
        self.steps_done = 0
        self.slowdown = 1.0
        self.preemptions = 0
        self.scheduled_tokens = 0
        self.most_running = 0
        self._events = events
        self._time = StepTime(profile)
        self._config = _config(KV_ROLES.get(name.rstrip("0123456789")), profile)
        self._named = 0
        self._start()

    def _start(self) -> None:
        self._scheduler = _scheduler(self._config, self.profile)
        self._step: _Step | None = None
        self._jobs: dict[str, Job] = {}
        self._names: dict[Job, str] = {}
        self._fronting: dict[Job, None] = {}
        self._arrived: list[Request] = []
        self._aborted: list[str] = []
        self._stalls_ms: dict[str, float] = {}
        self._received: set[str] = set()
        self._not_received: set[str] = set()
        self._sent: set[str] = set()

    # -- the front -------------------------------------------------------------------------------------------

    def submit(self, job: Job, arrived_s: float | None = None) -> None:
        """Take a request. It reaches the scheduler after the front's time."""
        if not self.alive:
            self._events.after(0.0, self._fail, job)
            return
        job.prompt_tokens = prompt_tokens(job.prompt)
        if job.prompt_tokens + job.output_tokens > self.profile.kv_capacity_tokens:  # the API server refuses it
            self._events.after(0.0, self._fail, job)
            return
        request = self._request(job)
        p = self.profile
        if job.kind is Kind.RECEIVE:
            front_ms = p.link.hop_ms
        else:
            _, hit, _ = self._scheduler.kv_cache_manager.get_computed_blocks(request)
            front_ms = p.front_ms + p.tokenise_ms_per_token * (job.prompt_tokens - hit)
        self._fronting[job] = None
        since_s = self._events.now_s if arrived_s is None else arrived_s
        self._events.at(since_s + front_ms / 1e3, self._enqueue, job, request, self.epoch)

    def abort(self, job: Job) -> None:
        """The client left: no callback follows."""
        job.muted = True
        if job.ended:
            return
        job.ended = True
        name = self._names.pop(job, None)
        if name is not None:
            del self._jobs[name]
            self._aborted.append(name)
            self._wake()

    def let_go(self, job: Job) -> None:
        """The lease of a prefilled prompt ended: its KV becomes ordinary cache."""
        name = self._names.pop(job, None)
        if name is not None:
            del self._jobs[name]
            self._sent.add(name)
            self._wake()

    def kill(self) -> None:
        """The process dies: every request on it fails, its cache is lost."""
        if not self.alive:
            return
        self.alive = False
        self.epoch += 1
        jobs = [*self._jobs.values(), *self._fronting]
        self._start()
        for job in jobs:
            self._fail(job)

    def revive(self) -> None:
        """A new, empty process."""
        self.alive = True

    def slow(self, factor: float) -> None:
        """From the next step on, steps take `factor` times as long; 1 ends it."""
        if not 0 < factor < inf:
            raise ValueError(f"{self.name}: a slowdown is a finite factor above 0, got {factor}")
        self.slowdown = factor

    @property
    def running(self) -> int:
        """Sequences in prefill or decode."""
        return self._scheduler.get_request_counts()[0]

    @property
    def waiting(self) -> int:
        """Requests that the scheduler has not admitted, or whose KV is on the way."""
        return self._scheduler.get_request_counts()[1] + len(self._arrived)

    @property
    def kv_usage(self) -> float:
        """Share of the KV memory held by running requests and leases, 0..1."""
        return self._scheduler.get_kv_cache_usage()

    # -- EngineCore's loop -----------------------------------------------------------------------------------

    def _enqueue(self, job: Job, request: Request, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self._fronting.pop(job, None)
        if job.ended:
            return
        job.queued_s = self._events.now_s
        self._jobs[request.request_id] = job
        self._names[job] = request.request_id
        self._arrived.append(request)
        self._wake()

    def _wake(self) -> None:
        """Something is to be told to the scheduler: now, or when the step that runs is over."""
        if self._step is None and self.alive:
            self._boundary()

    def _end_of_step(self, epoch: int) -> None:
        if epoch == self.epoch:
            self._boundary()

    def _boundary(self) -> None:
        now = self._events.now_s
        seen: list[tuple[Job, Callable[[Job, float], None] | None, float]] = []
        step, self._step = self._step, None
        if step is not None:
            self.busy_s += now - step.start_s
            self.steps_done += 1
            self._apply_aborts()
            self._update(step.output, step.sampled, self._told(), seen)
        while True:
            self._apply_aborts()
            for request in self._arrived:
                if request.request_id in self._jobs:
                    self._scheduler.add_request(request)
            self._arrived.clear()
            if not self._scheduler.has_requests():
                break
            output = self._scheduler.schedule()
            self.preemptions += len(output.preempted_req_ids or ())
            self._start_transfers(output)
            if output.total_num_scheduled_tokens:
                self._begin(output)
                break
            told = self._told()
            self._update(output, [], told, seen)
            if told is None:
                break
        for job, callback, at_s in seen:
            if job.muted:  # by an earlier callback
                if job.kind is Kind.PREFILL:
                    self.let_go(job)
            elif callback is not None:
                callback(job, at_s)

    def _apply_aborts(self) -> None:
        if self._aborted:
            self._scheduler.finish_requests(self._aborted, RequestStatus.FINISHED_ABORTED)
            self._aborted = []

    def _told(self) -> KVConnectorOutput | None:
        """What the connector's workers would report."""
        if not (self._received or self._sent):
            return None
        told = KVConnectorOutput(
            finished_sending=self._sent, finished_recving=self._received, failed_recving=self._not_received
        )
        self._sent, self._received, self._not_received = set(), set(), set()
        return told

    def _begin(self, output: SchedulerOutput) -> None:
        batch = context = 0
        stall_ms = 0.0
        chunks: list[tuple[int, int]] = []
        sampled: list[list[int]] = []
        requests = self._scheduler.requests
        for name, new in output.num_scheduled_tokens.items():
            request = requests[name]
            before = request.num_computed_tokens - new
            if new == 1:
                batch += 1
                context += before
            else:
                chunks.append((new, before))
            sampled.append([] if request.is_prefill_chunk else [TOKEN])
            if name in self._stalls_ms:
                stall_ms += self._stalls_ms.pop(name)
        self.scheduled_tokens += output.total_num_scheduled_tokens
        self.most_running = max(self.most_running, len(sampled))
        now = self._events.now_s
        self._step = _Step(now, output, sampled)
        took_ms = self._time.mixed_ms(batch, context, chunks, stall_ms) * self.slowdown
        self._events.at(now + took_ms / 1e3, self._end_of_step, self.epoch)

    def _update(
        self,
        output: SchedulerOutput,
        sampled: list[list[int]],
        told: KVConnectorOutput | None,
        seen: list[tuple[Job, Callable[[Job, float], None] | None, float]],
    ) -> None:
        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=told,
        )
        self._scheduler.recompute_kv_load_failures = self.recomputes
        outputs = self._scheduler.update_from_output(output, result)
        now = self._events.now_s
        seen_s = now + self.profile.first_token_ms / 1e3
        for each in outputs[0].outputs if 0 in outputs else ():
            job = self._jobs[each.request_id]
            if each.finish_reason is FinishReason.ERROR:
                self._ended(job)
                seen.append((job, job.on_failed, now))
                continue
            if each.prefill_stats is not None and job.kind is not Kind.RECEIVE:
                job.cached_tokens = each.prefill_stats.num_local_cached_tokens
            if job.kind is Kind.PREFILL:
                job.ended = True  # its blocks stay until the lease ends: let_go()
                seen.append((job, job.on_done, now))
                continue
            if not job.streaming:
                job.streaming = True
                seen.append((job, job.on_first, seen_s))
            if each.finish_reason is not None:
                self._ended(job)
                seen.append((job, job.on_done, seen_s))

    def _ended(self, job: Job) -> None:
        job.ended = True
        del self._jobs[self._names.pop(job)]

    def _fail(self, job: Job) -> None:
        if job.ended:
            return
        job.ended = job.muted = True
        job.on_failed(job, self._events.now_s)

    # -- the connector's workers -----------------------------------------------------------------------------

    def _start_transfers(self, output: SchedulerOutput) -> None:
        meta = output.kv_connector_metadata
        for name, wanted in meta.reqs_to_recv.items() if meta is not None else ():
            job = self._jobs.get(name)
            if job is None or not wanted.awaiting_kvs:
                continue
            stats = self._scheduler.requests[name].prefill_stats
            job.cached_tokens = stats.num_local_cached_tokens
            job.left = stats.num_external_cached_tokens
            job.scheduled_s = self._events.now_s
            job.transfer(job, partial(self._transferred, job, name, self.epoch))

    def _transferred(self, job: Job, name: str, epoch: int, ok: bool) -> None:
        if epoch != self.epoch:
            return
        self._received.add(name)
        if ok:
            self._stalls_ms[name] = self.profile.link.receive_stall_ms if job.stall_ms is None else job.stall_ms
        else:
            self._not_received.add(name)
        self._wake()

    # -- what vLLM is given ----------------------------------------------------------------------------------

    def _request(self, job: Job) -> Request:
        self._named += 1
        name = f"{job.request_id}-{self._named}"
        params = {Kind.PREFILL: _PREFILL, Kind.RECEIVE: _RECEIVE}.get(job.kind)
        sampling = SamplingParams(
            max_tokens=job.output_tokens,
            ignore_eos=True,
            extra_args=None if params is None else {"kv_transfer_params": dict(params)},
        )
        return Request(
            name,
            [TOKEN] * job.prompt_tokens,
            sampling,
            None,
            arrival_time=self._events.now_s,
            block_hasher=_hasher(job.prompt, self.profile, name),
        )


def _hasher(prompt: Prompt, profile: EngineProfile, name: str) -> Callable[[Request], list[bytes]]:
    """Names of full blocks: the segment in which a block ends, and its place. A segment's key stands for all before it.
    What is generated continues the last segment, or is the request's own where answers are not found again."""
    ends: list[tuple[float, bytes]] = []
    end = 0
    for key, tokens in prompt:
        end += tokens
        ends.append((end, _digest(key)))
    if profile.reuse_responses:
        ends[-1] = (inf, ends[-1][1])
    else:
        ends.append((inf, _digest(f"\0{name}")))
    block = profile.block_tokens

    def names(request: Request) -> list[bytes]:
        have, want = len(request.block_hashes), request.num_tokens // block
        if want <= have:
            return []
        found: list[bytes] = []
        for until, digest in ends:
            to = want if until == inf else min(want, int(until) // block)
            at = have + len(found)
            found += [digest + place.to_bytes(4, "big") for place in range(at, to)]
        return found

    return names


@cache
def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=12).digest()


@cache
def _config(kv_role: str | None, profile: EngineProfile) -> VllmConfig:
    """As `vllm serve` would make it for a Llama with these limits, without asynchronous scheduling."""
    with tempfile.TemporaryDirectory() as folder:
        model = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "vocab_size": 320,
            "max_position_embeddings": profile.kv_capacity_tokens,
        }
        (Path(folder) / "config.json").write_text(json.dumps(model), encoding="utf-8")
        transfer = kv_role and KVTransferConfig(
            kv_connector="NixlConnector", kv_role=kv_role, engine_id=kv_role, kv_buffer_device="cpu"
        )
        config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=profile.kv_capacity_tokens,
            max_num_batched_tokens=profile.token_budget,
            max_num_seqs=profile.max_sequences,
            block_size=profile.block_tokens,
            enable_prefix_caching=True,
            enable_chunked_prefill=True,
            async_scheduling=False,
            kv_transfer_config=transfer,
        ).create_engine_config()
    config.cache_config.num_gpu_blocks = _blocks(profile)
    return config


def _blocks(profile: EngineProfile) -> int:
    """One of them is vLLM's null block."""
    return profile.kv_capacity_tokens // profile.block_tokens + 1


def _scheduler(config: VllmConfig, profile: EngineProfile) -> Scheduler:
    spec = FullAttentionSpec(block_size=profile.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return Scheduler(
        config,
        KVCacheConfig(
            num_blocks=_blocks(profile), kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        StructuredOutputManager(config),
        profile.block_tokens,
    )
