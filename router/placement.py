"""Placement: which nodes may serve a turn, and which do.

P by the least predicted wait, its prefix hit included. D is sticky: the node that holds the conversation,
while it may be used. A conversation without one gets the D (or replica) whose live conversations leave the
most room. The record keeps the decided and the realised route.

A conversation that its client names gets the D that its name finds: rendezvous hashing over the nodes' URLs, the first
in that order whose load is within `BOUND` times the mean (consistent hashing with bounded loads: Mirrokni, Thorup,
Zadimoghaddam 2018). So routers that share nothing agree, and when one of N nodes goes, the 1/N that it had moves. A
node that came up a short while ago takes its share by and by, and one with a weight takes its weight's: its load counts
for 1/share, and its names' distances are 1/share as long (weighted rendezvous hashing: Schindelhauer, Schomaker 2005).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import log

from .conversations import Conversation
from .decision import Decision
from .features import TurnFeatures
from .latency import LatencyModel
from .load import NodeLoad
from .residency import Residency
from .turn import NodeId, Role, Route

BOUND = 1.25
"""A node's live tokens against the mean, by capacity, beyond which a name's next choice is asked."""
IDLE_SHARE = 0.1
"""Below this share of its memory a node is not loaded, whatever the mean is: there every router agrees."""
SLOW_START_S = 30.0
SLOW_START_FLOOR = 0.1
_2_64 = float(1 << 64)


@dataclass(slots=True)
class Node:
    """One engine as the router knows it. `usable` is health and drain together."""

    id: NodeId
    role: Role
    kv_capacity_tokens: int
    healthy: bool = True
    draining: bool = False
    block_tokens: int = 16
    introduced: bool = False
    """The engine itself told its block size and KV capacity."""
    engine_id: str = ""
    """What the engine calls itself, where its hand-over protocol asks; another one is another process."""
    url: str = ""
    """By which names find it; the same for all routers."""
    up_s: float | None = None
    """When it came up; None: long ago."""
    weight: float = 1.0
    """The operator's: of new conversations, and of prompts, it takes so many times what it would."""

    def uncached_tokens(self, held: int, prompt_tokens: int) -> int:
        """What the node lacks of a prompt: hits are whole blocks, and at least one token is always computed."""
        hit = min(held, prompt_tokens - 1)
        return prompt_tokens - (hit - hit % self.block_tokens)

    @property
    def usable(self) -> bool:
        """New work may be sent to it."""
        return self.healthy and not self.draining

    def ramp(self, now_s: float) -> float:
        """How much of its share of new conversations a node takes so soon after it came up, 0..1."""
        if self.up_s is None:
            return 1.0
        return min(1.0, max(SLOW_START_FLOOR, (now_s - self.up_s) / SLOW_START_S))


@dataclass(frozen=True, slots=True)
class Candidates:
    """Nodes that may serve this turn. `home` holds the conversation's KV, if one does and may be used."""

    prefill: tuple[Node, ...]
    decode: tuple[Node, ...]
    home: Node | None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the legs of a turn go. `realised` differs from the decision only where a node made the decided
    route impossible."""

    prefill: NodeId | None
    decode: NodeId
    realised: Route
    block_tokens: int | None = None
    """Block size of the prefill node, where it is known."""
    blocks: int | None = None
    """How many blocks the prefill node has, where it is known."""
    engine_id: str = ""
    """What the prefill node's engine calls itself, where it is known."""


class NoNode(Exception):
    """Nothing can serve the turn: no decode node or replica is usable, or every plan for it has failed."""


def eligible(conversation: Conversation, nodes: Iterable[Node], avoid: frozenset[NodeId] = frozenset()) -> Candidates:
    """Nodes that may serve the conversation's next turn; `avoid` are those that have just failed it."""
    usable = [node for node in nodes if node.usable and node.id not in avoid]
    prefill = tuple(node for node in usable if node.role is Role.PREFILL)
    decode = tuple(node for node in usable if node.role is not Role.PREFILL)
    if not decode:
        raise NoNode("no decode node or replica can be used")
    bound = (conversation.heading, conversation.decode_node) if conversation.in_flight else (conversation.decode_node,)
    homes = (node for id in bound for node in decode if node.id == id)
    return Candidates(prefill, decode, next(homes, None))


def choose_decode(
    candidates: Candidates,
    residency: Residency,
    now_s: float,
    *,
    name: str = "",
    shun: frozenset[NodeId] = frozenset(),
) -> Node:
    """The home, else the node that the conversation's name finds, else (without a name) the one whose live
    conversations need the smallest share of its KV memory. Those in `shun` only if there are no others."""
    if candidates.home is not None:
        return candidates.home
    pool = [node for node in candidates.decode if node.id not in shun] or candidates.decode
    shares = {node.id: node.ramp(now_s) * node.weight for node in pool}
    full = max(shares.values())  # nodes that all came up together share as those that all did long ago
    shares = {node: share / full for node, share in shares.items()}
    live = {node.id: residency.live_tokens(node.id, now_s) for node in pool}
    if name:
        found = _by_name(name, pool, shares, live)
        if found is not None:
            return found
    return min(pool, key=lambda n: (live[n.id] / (n.kv_capacity_tokens * shares[n.id]), n.id))


def _by_name(
    name: str, pool: Iterable[Node], shares: Mapping[NodeId, float], live: Mapping[NodeId, int]
) -> Node | None:
    """The first node in the name's own order whose load is within the bound; None if none is."""
    ordered = sorted(pool, key=lambda n: (_distance(name, n.url or n.id) / shares[n.id], n.id))
    room = {node.id: node.kv_capacity_tokens * shares[node.id] for node in ordered}
    mean = sum(live.values()) / sum(room.values())
    for node in ordered:
        if live[node.id] <= room[node.id] * max(BOUND * mean, IDLE_SHARE if node.introduced else 0.0):
            return node
    return None


def _distance(name: str, node: str) -> float:
    """Exponentially distributed, of mean 1: the least of them, each over its weight, is drawn by weight."""
    digest = blake2b(f"{node}\0{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return -log((int.from_bytes(digest, "big") + 1) / (_2_64 + 1))


def choose_prefill(
    candidates: Candidates,
    conversation: Conversation,
    prompt_tokens: int,
    load: dict[NodeId, NodeLoad],
    residency: Residency,
    latency: LatencyModel | None,
    now_s: float,
) -> tuple[Node, int] | None:
    """(P with the least predicted wait over its weight, tokens that it lacks), or None without a P. Without a model,
    tokens stand for time."""
    best: tuple[float, NodeId, Node, int] | None = None
    for node in candidates.prefill:
        uncached = node.uncached_tokens(residency.held(node.id, conversation.key), prompt_tokens)
        own_ms = float(uncached) if latency is None else latency.prefill_ms(uncached, prompt_tokens)
        entry = ((load[node.id].prefill.ms(now_s) + own_ms) / node.weight, node.id, node, uncached)
        if best is None or entry[:2] < best[:2]:
            best = entry
    return None if best is None else (best[2], best[3])


def pick(decision: Decision, features: TurnFeatures, candidates: Candidates, load: dict[NodeId, NodeLoad]) -> Placement:
    """Nodes for the decided route. A transfer that the home has no KV room for goes to the decode node with
    the most."""
    if decision.route is Route.APPEND_LOCAL or features.prefill is None:
        return Placement(None, features.decode, Route.APPEND_LOCAL)
    decode = features.decode
    need = features.prompt_tokens + features.n_out
    if features.d_kv_tokens + need > features.d_kv_capacity_tokens:
        takers = (node for node in candidates.decode if node.role is Role.DECODE)
        roomiest = max(takers, key=lambda n: (n.kv_capacity_tokens - load[n.id].kv_in_use_tokens, n.id))
        if roomiest.kv_capacity_tokens - load[roomiest.id].kv_in_use_tokens >= need:
            decode = roomiest.id
    prefill = next(node for node in candidates.prefill if node.id == features.prefill)
    if not prefill.introduced:
        return Placement(prefill.id, decode, Route.PREFILL_TRANSFER, engine_id=prefill.engine_id)
    blocks = prefill.kv_capacity_tokens // prefill.block_tokens
    return Placement(prefill.id, decode, Route.PREFILL_TRANSFER, prefill.block_tokens, blocks, prefill.engine_id)
