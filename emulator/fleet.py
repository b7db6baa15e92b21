"""A fleet of emulated engines: nodes by notation, the hand-over between them, death and return.

`call` is what an HTTP request is to the real thing. The hand-over is NIXL's, or another of `handover.py`. With NIXL
a prefill leg answers with `kv_transfer_params` in the
shape that vLLM's NIXL connector uses; a decode leg that carries them pulls only what its node lacks, over P's
link, one transfer at a time. P keeps a prefilled prompt for `lease_s`; the reader's heartbeats keep it from
the moment the request is at D until it is read. What a wrong hand-over does to a real engine happens here
too: null blocks kill the engine; without a request id D hangs, and dies when its client leaves; a read after the
lease's end (expired, or read before) brings garbage and is counted in `poisoned_reads`; a read from a P that is gone
fails, and then D's request fails (`LoadFailure.FAIL`) or D computes the prompt itself (`RECOMPUTE`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from .engine import Engine, Job, Kind
from .events import Events
from .handover import HAND_OVERS, HandOver
from .prefix_cache import Prompt
from .profiles import EngineProfile, Link


class Role(StrEnum):
    """P prefills, D decodes (and may append-prefill), R is a replica that does both."""

    PREFILL = "P"
    DECODE = "D"
    REPLICA = "R"
    APPEND = "pD"
    """In notation only: a D whose later turns are always computed there (the paper's x = 1)."""


PAPER_TOPOLOGIES: dict[str, str] = {
    "4R": "replica",
    **dict.fromkeys(("1P_3D", "2P_2D", "3P_1D"), "x=0"),
    **dict.fromkeys(("1P_3pD", "2P_2pD", "3P_1pD"), "x=1"),
    "1P_2D_1pD": "x=1/3",
    "2P_1D_1pD": "x=1/2",
    "1P_1D_2pD": "x=2/3",
    **dict.fromkeys(("1R_1P_2D", "1R_2P_1D", "2R_1P_1D"), "hybrid x=0"),
    **dict.fromkeys(("1R_1P_2pD", "1R_2P_1pD", "2R_1P_1pD"), "hybrid x=1"),
    "1R_1P_1D_1pD": "hybrid x=1/2",
}
"""The 17 configurations of the paper's Table 4 on four GPUs, as its data names them. A share x of append-prefills is
a mix of D and pD nodes; replicas know no x."""


class LoadFailure(StrEnum):
    """What D does with a request whose KV it could not read: vLLM's `kv_load_failure_policy`."""

    FAIL = "fail"
    RECOMPUTE = "recompute"


EngineMaker = Callable[[str, EngineProfile, Events], Engine]
"""From a node's name, its profile and the clock."""
OPENING_TOKENS = 4
HANDSHAKE_S = 5.0
"""How long D waits for the side channel of an engine that it has not read from before."""


def parse_topology(notation: str) -> dict[Role, int]:
    """`2P_2D` → {P: 2, D: 2}, `1P_2D_1pD` → {P: 1, D: 2, pD: 1}. Raises ValueError with the accepted form."""
    counts: dict[Role, int] = {}
    for part in notation.split("_"):
        match = re.fullmatch(r"([1-9]\d{0,3})(P|D|R|pD)", part)
        if match is None or Role(match[2]) in counts:
            raise ValueError(
                f"topology {notation!r}: {part!r} is not a count and a role; write e.g. 1P_3D, 2P_2pD or 4R"
            )
        counts[Role(match[2])] = int(match[1])
    if counts.keys() <= {Role.PREFILL}:
        raise ValueError(f"topology {notation!r} has nobody to decode; add D or R nodes, e.g. 2P_2D")
    return counts


@dataclass(frozen=True, slots=True)
class Request:
    """One request to one node. `output_tokens` is exact, as with ignore_eos."""

    request_id: str
    prompt: Prompt
    output_tokens: int
    kv_transfer_params: Mapping[str, object] | None = None
    session: str | None = None
    """Of which conversation it is, as `X-Session-ID` says it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the body of the answer says."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    kv_transfer_params: dict[str, object] | None = None


class Witness(Protocol):
    """Told what a node's own counters would say and no reply carries. Virtual-time runs need none."""

    def pulled(self, node: str, tokens: int, took_s: float) -> None:
        """`node` has read that many tokens."""

    def pull_failed(self, node: str) -> None:
        """`node` could not read."""

    def stale_read(self, node: str, owner: str) -> None:
        """`node` has read what `owner` no longer held for it."""

    def lease_expired(self, owner: str) -> None:
        """Nobody read it in time."""

    def died(self, node: str) -> None:
        """Its process is gone."""


@dataclass(slots=True)
class _Lease:
    job: Job
    owner: str
    epoch: int
    expires_s: float
    reader: Job | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a decode leg was told to read, and from whom."""

    remote_id: str
    owner: Engine | None
    lease: _Lease | None
    readable: bool
    """Whether its blocks are P's."""
    answered: bool
    """Whether anybody listens at the side channel that it names."""


OnFirst = Callable[[float], None]
OnDone = Callable[[float, Reply], None]
OnFailed = Callable[[float, int], None]


class Call:
    """A request in flight; `abort` is the client closing its connection."""

    __slots__ = ("_engine", "_on_abort", "job")

    def __init__(self, engine: Engine, job: Job, on_abort: Callable[[], None] | None = None) -> None:
        self._engine, self.job, self._on_abort = engine, job, on_abort

    def abort(self) -> None:
        """Stop the work; no callback follows."""
        self._engine.abort(self.job)
        if self._on_abort is not None:
            self._on_abort()


class Fleet:
    """Engines by name (`P0`, `D1`, `pD0`, `R0`) on one clock.

    `profiles` gives single nodes, or all of a role, other engines than `profile`: `{"P": ..., "D1": ...}`. All must
    serve one model. A transfer goes by its P's link. `make` makes a node: ours, or what behaves like it.
    """

    def __init__(
        self,
        notation: str,
        profile: EngineProfile,
        events: Events,
        load_failure: LoadFailure = LoadFailure.FAIL,
        profiles: Mapping[str, EngineProfile] = MappingProxyType({}),
        connector: str = "nixl",
        make: EngineMaker = Engine,
    ) -> None:
        self.notation = notation
        self.profile = profile
        self.events = events
        self.engines: dict[str, Engine] = {}
        self.roles: dict[str, Role] = {}
        """What each node's engine does; a pD is a D here."""
        self.appends: frozenset[str]
        """The pD nodes: whoever routes computes their later turns there."""
        appends = []
        for role, count in parse_topology(notation).items():
            for index in range(count):
                name = f"{role}{index}"
                own = profiles.get(name, profiles.get(role.value, profile))
                self.engines[name] = make(name, own, events)
                self.engines[name].recomputes = load_failure is LoadFailure.RECOMPUTE
                self.roles[name] = Role.DECODE if role is Role.APPEND else role
                if role is Role.APPEND:
                    appends.append(name)
        self.appends = frozenset(appends)
        _same_model(self.engines, profiles)
        self.poisoned_reads = 0
        self.leases_expired = 0
        self.transferred_tokens = 0
        self.witness: Witness | None = None
        self.links: dict[str, Link] = {name: engine.profile.link for name, engine in self.engines.items()}
        """The KV path out of each node, as it is now."""
        self._links_busy_until_s = dict.fromkeys(self.engines, 0.0)
        self._leases: dict[str, _Lease] = {}
        self._met: set[tuple[str, str]] = set()
        self._issued = 0
        self.connector = connector
        self.hand_over: HandOver | None = None if connector == "nixl" else HAND_OVERS[connector](self)

    @property
    def open_leases(self) -> int:
        """Prefilled prompts that nobody has read yet."""
        return sum(self._owner_lives(lease) for lease in self._leases.values())

    def kill(self, node: str) -> None:
        """The node's process dies now."""
        was_alive = self.engines[node].alive
        self._links_busy_until_s[node] = 0.0
        self.engines[node].kill()
        self._met = {pair for pair in self._met if pair[0] != node}
        if was_alive and self.witness is not None:
            self.witness.died(node)

    def revive(self, node: str) -> None:
        """The node comes back, empty."""
        self.engines[node].revive()

    def met(self, reader: str) -> list[str]:
        """Engines that a node has read from: their side channel is asked no more."""
        return [owner for node, owner in self._met if node == reader]

    def set_bandwidth(self, gb_s: float, node: str | None = None) -> None:
        """From now on the link of `node`, or every link, has that speed in GB/s; what is on its way is not touched."""
        for name in self.engines if node is None else (node,):
            self.links[name] = replace(self.links[name], bandwidth_gb_s=gb_s)

    def call(
        self,
        node: str,
        request: Request,
        on_first: OnFirst | None,
        on_done: OnDone,
        on_failed: OnFailed,
        *,
        on_token: Callable[[float], None] | None = None,
        arrived_s: float | None = None,
    ) -> Call:
        """Send a request to a node now. One of on_done and on_failed(status) follows, unless aborted.

        `arrived_s` counts the front's time from earlier than now.
        """
        params = request.kv_transfer_params
        if self.hand_over is not None:
            params = self.hand_over.terms(node, request.request_id, params)
        if params is not None and params.get("do_remote_decode"):
            kind = Kind.PREFILL
        elif params is not None and params.get("do_remote_prefill"):
            kind = Kind.RECEIVE
        else:
            kind = Kind.FULL
        first = None if on_first is None else lambda job, at_s: on_first(at_s)

        def done(job: Job, at_s: float) -> None:
            if self.hand_over is None or kind is not Kind.PREFILL:
                on_done(at_s, self._reply(node, job, params or {}))
                return
            self.hand_over.prefilled(node, job, params or {}, lambda ok: replied(job, ok))

        def replied(job: Job, ok: bool) -> None:
            if job.muted:
                return
            if ok:
                on_done(self.events.now_s, Reply(job.prompt_tokens, job.cached_tokens, 1))
            else:
                on_failed(self.events.now_s, 503)

        job = Job(
            request.request_id,
            kind,
            request.prompt,
            1 if kind is Kind.PREFILL else request.output_tokens,
            first,
            done,
            lambda job, at_s: on_failed(at_s, 503 if not self.engines[node].alive else 500),
        )
        job.on_token = on_token
        job.session = request.session
        if kind is Kind.RECEIVE and self.hand_over is not None:
            job.transfer = self.hand_over.transfer(node, params or {})
        elif kind is Kind.RECEIVE:
            self._prepare_pull(node, job, params or {})
        engine = self.engines[node]
        engine.submit(job, arrived_s)
        hangs = (
            kind is Kind.RECEIVE
            and self.hand_over is None
            and not isinstance((params or {}).get("remote_request_id"), str)
        )
        return Call(engine, job, (lambda: self.kill(node)) if hangs else None)

    def refuse(self, params: Mapping[str, object]) -> None:
        """The decode leg was refused before it reached its engine: P need not wait for it."""
        remote_id = params.get("remote_request_id")
        lease = self._leases.get(remote_id) if isinstance(remote_id, str) else None
        if lease is not None:
            self._close(str(remote_id), lease)

    def lease(self, node: str, job: Job, lease_s: float) -> str:
        """Keep a prefilled prompt on its node for that long; the lease's name."""
        self._issued += 1
        remote_id = f"chatcmpl-{job.request_id}-{self._issued:08x}"
        lease = _Lease(job, node, self.engines[node].epoch, self.events.now_s + lease_s)
        self._leases[remote_id] = lease
        self.events.at(lease.expires_s, self._expire, remote_id)
        return remote_id

    def holds(self, remote_id: str) -> bool:
        """Whether the lease runs and its owner lives."""
        lease = self._leases.get(remote_id)
        return lease is not None and self._owner_lives(lease)

    def pull(self, node: str, remote_id: str, job: Job, arrived: Callable[[bool], None]) -> None:
        """Bring a leased prompt to a node's job, over its owner's link."""
        lease = self._leases[remote_id]
        self._pull(node, _Offer(remote_id, self.engines[lease.owner], lease, True, True), job, arrived)

    def link(self, owner: str, tokens: int, computed: int) -> tuple[float, float]:
        """Take a node's link for that many tokens of a prompt of which it computed so many: (when they are there,
        seconds that they take on it)."""
        link = self.links[owner]
        busy_until_s = self._links_busy_until_s[owner]
        start_s = max(self.events.now_s, busy_until_s)
        kv_bytes = self.engines[owner].profile.kv_bytes_per_token
        took_s = link.send_ms(tokens, computed, busy_until_s > self.events.now_s, kv_bytes) / 1e3
        self._links_busy_until_s[owner] = start_s + took_s
        self.transferred_tokens += tokens
        return start_s + took_s, took_s

    def _reply(self, node: str, job: Job, params: Mapping[str, object]) -> Reply:
        if job.kind is not Kind.PREFILL:
            # On a transferred turn D reports P's hits, as vLLM 0.32 does.
            foreign = params.get("remote_prefill_cached_tokens") if job.kind is Kind.RECEIVE else None
            cached = foreign if isinstance(foreign, int) else job.cached_tokens
            return Reply(job.prompt_tokens, cached, job.output_tokens)
        remote_id = self.lease(node, job, self.engines[node].profile.lease_s)
        blocks = -(-job.prompt_tokens // self.engines[node].profile.block_tokens)
        handle: dict[str, object] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [range(1, blocks + 1)],
            "remote_engine_id": node,
            "remote_request_id": remote_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "remote_num_tokens": job.prompt_tokens,
            "remote_prefill_cached_tokens": job.cached_tokens,
        }
        return Reply(job.prompt_tokens, job.cached_tokens, 1, handle)

    def _prepare_pull(self, node: str, job: Job, params: Mapping[str, object]) -> None:
        remote_id, blocks = params.get("remote_request_id"), params.get("remote_block_ids")
        if not isinstance(remote_id, str) or not blocks:
            if not blocks:  # as vLLM does: an assertion fails in the engine core and the process is gone
                self.events.after(0.0, self.kill, node)
            job.transfer = lambda job, arrived: None
            return
        lease = self._leases.get(remote_id)
        if lease is not None:
            lease.reader = job
        owner = self.engines.get(str(params.get("remote_engine_id")))
        readable, answered = params.get("readable") is not False, bool(params.get("side_channel"))
        offer = _Offer(remote_id, owner, lease, readable, answered)
        job.transfer = lambda job, arrived: self._pull(node, offer, job, arrived)

    def _pull(self, node: str, offer: _Offer, job: Job, arrived: Callable[[bool], None]) -> None:
        remote_id, owner, lease = offer.remote_id, offer.owner, offer.lease
        lives = owner is not None and owner.alive and (lease is None or self._owner_lives(lease))
        if owner is None or not lives or not offer.readable or owner.name == node:
            self.events.after(self._gives_up_s(node, offer), self._not_pulled, node, arrived)
            return
        self._met.add((node, owner.name))
        if lease is None or lease.over:
            self.poisoned_reads += 1
            job.poisoned = True
            if self.witness is not None:
                self.witness.stale_read(node, owner.name)
            self.events.after(0.0, arrived, True)
            return
        if not _same(lease.job.prompt, job.prompt):  # another prompt's handle: vLLM compares no tokens either
            self.poisoned_reads += 1
            job.poisoned = True
        link = self.links[lease.owner]
        sent = job.prompt_tokens if link.whole_prompt else job.left
        there_s, took_s = self.link(lease.owner, sent, lease.job.prompt_tokens - lease.job.cached_tokens)
        job.stall_ms = link.stall_ms(sent, owner.profile.kv_bytes_per_token)
        self.events.at(there_s, self._pulled, node, remote_id, lease, (sent, took_s), arrived)

    def _gives_up_s(self, node: str, offer: _Offer) -> float:
        """How long it takes to learn that nothing can be read."""
        owner = offer.owner
        if owner is not None:
            known = owner.name == node or not offer.readable or (node, owner.name) in self._met
        else:  # a stranger answers at once, but a D that only fails the request looks again no earlier
            known = offer.answered and self.engines[node].recomputes
        return 0.0 if known else HANDSHAKE_S

    def _not_pulled(self, node: str, arrived: Callable[[bool], None]) -> None:
        if self.witness is not None:
            self.witness.pull_failed(node)
        arrived(False)

    def _pulled(
        self, node: str, remote_id: str, lease: _Lease, read: tuple[int, float], arrived: Callable[[bool], None]
    ) -> None:
        ok = self._owner_lives(lease)
        if ok:
            self._close(remote_id, lease)
        if self.witness is not None:
            if ok:
                self.witness.pulled(node, *read)
            else:
                self.witness.pull_failed(node)
        arrived(ok)

    def _expire(self, remote_id: str) -> None:
        lease = self._leases.get(remote_id)
        if lease is None:
            return
        if self._owner_lives(lease):
            if lease.reader is not None and not lease.reader.ended:  # the reader's heartbeats keep it
                lease_s = self.engines[lease.owner].profile.lease_s
                self.events.after(lease_s, self._expire, remote_id)
                return
            self.leases_expired += 1
            if self.witness is not None:
                self.witness.lease_expired(lease.owner)
        self._close(remote_id, lease)

    def _close(self, remote_id: str, lease: _Lease) -> None:
        if not lease.over:
            lease.over = True
            self._leases.pop(remote_id, None)
            if self._owner_lives(lease):
                self.engines[lease.owner].let_go(lease.job)

    def _owner_lives(self, lease: _Lease) -> bool:
        """Whether the process that holds the prompt still runs."""
        return self.engines[lease.owner].epoch == lease.epoch


def _same(prefilled: Prompt, asked: Prompt) -> bool:
    """Whether both are one text. The few tokens that open an answer have the name of what will be said, which differs
    where P was not asked for the tool that D must call."""
    if prefilled == asked:
        return True
    *before, (_, tokens) = prefilled
    *others, (_, as_many) = asked
    return bool(before) and before == others and tokens == as_many <= OPENING_TOKENS


def _same_model(engines: Mapping[str, Engine], named: Mapping[str, EngineProfile]) -> None:
    """Raises ValueError for profiles of other models or of nobody in the fleet."""
    roles = {name.rstrip("0123456789") for name in engines}
    nobody = sorted(named.keys() - engines.keys() - roles)
    if nobody:
        raise ValueError(f"profiles for {', '.join(nobody)}, but the nodes are {', '.join(engines)}")
    models = {(e.profile.model, e.profile.kv_bytes_per_token) for e in engines.values()}
    if len(models) > 1:
        names = ", ".join(sorted({model for model, _ in models}))
        raise ValueError(f"one fleet serves one model with KV of one size, got {names}")
