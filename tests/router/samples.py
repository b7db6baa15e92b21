"""Small round numbers that the router's tests share: one model, one table, one turn, and changes to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from router.features import TurnFeatures
from router.latency import LatencyModel
from router.paper_table import PaperTable
from router.policy import Policy, TableKey, Tables, Weights
from router.table import Axes, LoadAwareTable
from router.turn import ConversationKey, NodeId, Turn

MODEL = "llm"
TOPOLOGY = "2P_2D"
P0, P1, D0, D1, R0 = (NodeId(name) for name in ("P0", "P1", "D0", "D1", "R0"))

LATENCY = LatencyModel(
    front_ms=10,
    tokenise_ms_per_token=0.01,
    floor_ms=5,
    base_ms=1,
    token_ms=0.05,
    attention_ms_per_token2=1e-6,
    sequence_ms=0.1,
    kv_read_ms_per_token=1e-5,
    handoff_ms=20,
    transfer_ms_per_token=0.002,
)
AXES = Axes(
    uncached_d=(1, 100, 1000, 10_000),
    uncached_p=(1, 100, 1000, 10_000),
    prompt=(500, 5000, 50_000),
    batch=(0, 8, 64),
)
TABLE = LoadAwareTable.filled(LATENCY, AXES)

_TURN = TurnFeatures(
    model=MODEL,
    turn=2,
    n_ctx=4000,
    n_in=100,
    n_out=200,
    uncached_d=100,
    uncached_p=1000,
    p_backlog_ms=0.0,
    link_backlog_ms=0.0,
    d_backlog_ms=0.0,
    d_batch=8,
    d_kv_tokens=0,
    d_kv_capacity_tokens=100_000,
    qps=4.0,
    topology=TOPOLOGY,
    prefill=P0,
    decode=D0,
    resident=True,
    replica=False,
)


def features(**changes: Any) -> TurnFeatures:
    """A second turn of 100 new tokens on 4000, resident on D0, with changes."""
    return replace(_TURN, **changes)


def tables(table: LoadAwareTable = TABLE, paper: PaperTable | None = None, digest: str = "d1") -> Tables:
    """What a policy holds of one artefact."""
    return Tables(table, paper, "emulated", digest)


def policy(price: float = 0.4, **changes: Any) -> Policy:
    """Version 7, one table, at that price, with changes."""
    plain = Policy(7, {TableKey(MODEL, TOPOLOGY): tables()}, Weights.from_price(price))
    return replace(plain, **changes) if changes else plain


def key(name: str = "c1") -> ConversationKey:
    """A conversation of the one tenant."""
    return ConversationKey("tenant", MODEL, name)


def turn(request_id: str, conversation: str = "c1", new_tokens: int = 100, accepted_s: float = 0.0) -> Turn:
    """A streaming turn."""
    return Turn(request_id, key(conversation), new_tokens, None, True, accepted_s)
