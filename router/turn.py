"""The vocabulary of routing: a turn, where it may run, why it ran there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

from slos.terms import NO_TERMS, Terms

NodeId = NewType("NodeId", str)


class Role(StrEnum):
    """What a node is for. A decode node may append-prefill; a replica prefills and decodes its own
    conversations."""

    PREFILL = "prefill"
    DECODE = "decode"
    REPLICA = "replica"


class Route(StrEnum):
    """Where the prompt of a turn is computed: on the node that decodes (the paper's x=1), or on P with a KV
    transfer (x=0)."""

    APPEND_LOCAL = "append_local"
    PREFILL_TRANSFER = "prefill_transfer"


class Reason(StrEnum):
    """Why a turn took its route. The same word in logs, metrics, headers and dashboards."""

    FIRST_TURN = "first_turn"
    """Nobody holds the conversation's KV yet."""
    SCORE = "score"
    """Equation 1: the two sides of the trade-off, weighted."""
    LOCAL_SLOWER = "local_slower"
    """There is no trade-off: the local side is not faster."""
    PINNED = "pinned"
    """An operator fixed the share of local turns."""
    EXPLORED = "explored"
    """The coin chose the other side, within the exploration floor."""
    KV_GUARD = "kv_guard"
    """Local work would fill the decode node's KV memory."""
    KV_SHORT = "kv_short"
    """The decode node is short of KV memory, and local work would delay others there by more than it saves."""
    P_UNAVAILABLE = "p_unavailable"
    """No prefill node can be used."""
    REPLICA = "replica"
    """A replica serves its conversations itself."""
    PREFILL_FAILED = "prefill_failed"
    """A prefill leg failed before anything was sent; the turn was planned again."""
    DECODE_FAILED = "decode_failed"
    """A decode leg failed before anything was sent; the turn was planned again."""
    NODE_DRAINED = "node_drained"
    """The conversation's decode node takes no new turns any more: the turn went to another."""
    NODE_GONE = "node_gone"
    """The conversation's decode node is down or has left: the turn went to another."""
    BREAKER_OPEN = "breaker_open"
    """The conversation's decode node failed too many turns in a row: the turn went to another."""
    NODE_SLOW = "node_slow"
    """The conversation's decode node streams much more slowly than the others: the turn went to another."""
    LOCAL_ONLY = "local_only"
    """The request asks for something that a transferred prompt cannot give (n > 1, echo,
    prompt_logprobs, beam search, several prompts, prompt embeddings)."""
    PASSTHROUGH = "passthrough"
    """No turn: another route of the engines, passed on as it is. In no decision and no record."""
    NO_TABLE = "no_table"
    """No table for this model, or none of the kind that is decided by: local if D lacks few enough tokens of the prompt
    (`Policy.without_table_tokens`), else the traditional route."""
    NO_DATA = "no_data"
    """`table: paper`: no measurement in reach of this cell: the traditional route."""
    X0_FAILED = "x0_failed"
    """`table: paper`: the transfer runs of this cell failed outright."""
    X1_FAILED = "x1_failed"
    """`table: paper`: the local runs of this cell failed, the transfer runs did not."""
    RULE = "rule"
    """A fixed rule to compare with (benchmarks only)."""


class ConversationKey(NamedTuple):
    """Whose conversation it is. `id` comes from the client or from a keyed hash of the message chain."""

    tenant: str
    model: str
    id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of one conversation, as accepted. `new_tokens` is what the client added since the last
    answer (estimated)."""

    request_id: str
    key: ConversationKey
    new_tokens: int
    max_tokens: int | None
    streaming: bool
    accepted_s: float
    local_only: bool = False
    history_tokens: int = 0
    """Estimated tokens before the new ones; used where the conversation's own count does not apply."""
    named: bool = False
    """The client itself names the conversation: every router finds the same decode node by that name."""
    number: int | None = None
    """Which turn of its conversation it is, where the request itself says so (a retry, or a history that this
    router has not seen); else it is the one after the last answered.
    """
    terms: Terms = NO_TERMS
    base: str = ""
    """The model beneath, where the client asked for an adapter or an alias."""

    @property
    def model(self) -> str:
        """The model whose table, price and SLOs apply."""
        return self.base or self.key.model
