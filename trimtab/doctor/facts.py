"""What was seen of engines, before anybody judges it. None means: not seen, or not asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.engines import NodeScrape
from router.turn import Role


@dataclass(frozen=True, slots=True)
class Served:
    """One entry of /v1/models; `root` is what the engine loaded."""

    id: str
    root: str
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class Page:
    """/metrics. `cache` holds the labels of `cache_config_info` of the first of `engines`; `consumer` is what vLLM
    shows only where `kv_role` makes it pull KV."""

    scrape: NodeScrape
    cache: Mapping[str, str] | None = None
    engines: int = 1
    connector: bool = False
    consumer: bool = False
    prompt_tokens: Mapping[str, float] = field(default_factory=dict)
    """Counted so far, by source; empty where the release does not tell."""
    failed_transfers: float | None = None
    expired_leases: float | None = None

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a KV block."""
        return self._number("block_size")

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit into the KV memory, as the router counts them."""
        blocks, block = self._number("num_gpu_blocks"), self.block_tokens
        return blocks * block if blocks and block else None

    def _number(self, name: str) -> int | None:
        text = "" if self.cache is None else self.cache.get(name, "")
        return int(text) if text.isdecimal() and int(text) > 0 else None


@dataclass(frozen=True, slots=True)
class Config:
    """What /server_info tells; vLLM shows it in development mode only."""

    connector: str | None = None
    kv_role: str | None = None
    lease_s: float | None = None
    load_failure_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A tiny streamed request and the same once more. `error`: what a request ended with instead of an answer."""

    error: str = ""
    chat: bool = True
    """False: /v1/chat/completions refused it, /v1/completions took it."""
    usage: bool = False
    details: bool = False
    """The usage says how much of the prompt was cached."""
    cached_again: int | None = None
    """Of the second request's prompt."""
    prompt_tokens: int = 0
    id_taken: bool = False
    id_echoed: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One engine."""

    name: str
    url: str
    role: Role | None
    role_given: bool = True
    problem: str = ""
    """Why it cannot be used at all: no answer, or /health says so. Then the rest is empty."""
    wants_key: bool = False
    let_in: bool = True
    """False: it wants a key, and there was none or another one, so that the rest is partly empty."""
    version: str | None = None
    models: tuple[Served, ...] | None = None
    page: Page | None = None
    page_problem: str = ""
    config: Config | None = None
    skew_s: float | None = None
    """The engine's clock less ours, to about a second."""
    idle_closed_s: float | None = None
    """An idle connection was closed by the engine after so long."""
    idle_watched_s: float | None = None
    """So long it was watched."""
    event_sources: Mapping[str, bool | None] | None = None
    """Where KV events are published, and whether the engine listens there; None where it does not bind that address
    but connects to it, so that a reader has to be there first."""
    ask: Ask | None = None

    def name_for(self, model: str) -> str:
        """What it calls the model: as wanted if it serves that, else its own first name; empty without one."""
        ids = [served.id for served in self.models or ()]
        return model if model in ids else ids[0] if ids else ""


@dataclass(frozen=True, slots=True)
class HandOver:
    """One turn handed from P to D as the router does it. `failed` is the leg that went wrong: prefill, handshake or
    decode, or untried; empty if none did. Token counts are what D's counters rose by; None where D does not tell."""

    prefill: str
    decode: str
    failed: str = ""
    detail: str = ""
    side_channel: str = ""
    prompt_tokens: int = 0
    pulled_tokens: float | None = None
    computed_tokens: float | None = None
    failed_transfers: float | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a P kept a prompt that nobody fetched; `held_s` None if it was still there after `watched_s`."""

    node: str
    held_s: float | None
    watched_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the router goes by, and what was to be looked at."""

    model: str = "*"
    lease_s: float = 30.0
    connector: str = "nixl"
    engine_signal: bool = False
    keep_alive_s: float = 4.0
    probed: bool = True
    keyed: bool = False
    """The router has a key for engines: `models.NAME.engine_key_env`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    nodes: tuple[Node, ...]
    assumed: Assumed = field(default_factory=Assumed)
    hand_overs: tuple[HandOver, ...] = ()
    leases: tuple[Lease, ...] = ()

    @property
    def up(self) -> tuple[Node, ...]:
        """Nodes that answer."""
        return tuple(node for node in self.nodes if not node.problem)

    def of(self, *roles: Role) -> tuple[Node, ...]:
        """Nodes that answer, of these roles."""
        return tuple(node for node in self.up if node.role in roles)
