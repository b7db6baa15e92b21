"""Placement: which nodes may serve a turn, and which do.

P by the least predicted wait, its prefix hit included. D is sticky: the node that holds the conversation,
while it may be used. A conversation without one gets the D (or replica) whose live conversations leave the
most room. The record keeps the decided and the realised route.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .conversations import Conversation
from .decision import Decision
from .features import TurnFeatures
from .latency import LatencyModel
from .load import NodeLoad
from .residency import Residency
from .turn import NodeId, Role, Route


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

    def uncached_tokens(self, held: int, prompt_tokens: int) -> int:
        """What the node lacks of a prompt: hits are whole blocks, and at least one token is always computed."""
        hit = min(held, prompt_tokens - 1)
        return prompt_tokens - (hit - hit % self.block_tokens)

    @property
    def usable(self) -> bool:
        """New work may be sent to it."""
        return self.healthy and not self.draining


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
    home = next((node for node in decode if node.id == conversation.decode_node), None)
    return Candidates(prefill, decode, home)


def choose_decode(candidates: Candidates, residency: Residency, now_s: float) -> Node:
    """The home, else the one whose live conversations need the smallest share of its KV memory."""
    if candidates.home is not None:
        return candidates.home
    return min(candidates.decode, key=lambda n: (residency.live_tokens(n.id, now_s) / n.kv_capacity_tokens, n.id))


def choose_prefill(
    candidates: Candidates,
    conversation: Conversation,
    prompt_tokens: int,
    load: dict[NodeId, NodeLoad],
    residency: Residency,
    latency: LatencyModel | None,
    now_s: float,
) -> tuple[Node, int] | None:
    """(P with the least predicted wait, tokens that it lacks), or None without a P. Without a model, tokens
    stand for time."""
    best: tuple[float, NodeId, Node, int] | None = None
    for node in candidates.prefill:
        uncached = node.uncached_tokens(residency.held(node.id, conversation.key), prompt_tokens)
        own_ms = float(uncached) if latency is None else latency.prefill_ms(uncached, prompt_tokens)
        entry = (load[node.id].prefill.ms(now_s) + own_ms, node.id, node, uncached)
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
