"""What is known about a turn at the moment of its decision."""

from __future__ import annotations

from dataclasses import dataclass

from .turn import NodeId


@dataclass(frozen=True, slots=True)
class TurnFeatures:
    """Tokens, ms and counts of one turn against its best candidates. `prompt_tokens` = n_ctx + n_in."""

    model: str
    turn: int
    n_ctx: int
    n_in: int
    n_out: int
    """Expected output tokens."""
    uncached_d: int
    uncached_p: int
    p_backlog_ms: float
    link_backlog_ms: float
    d_backlog_ms: float
    d_batch: int
    d_kv_tokens: int
    """KV tokens that running sequences on D need, this turn excluded."""
    d_kv_capacity_tokens: int
    qps: float
    """Turns per second of the whole fleet."""
    topology: str
    prefill: NodeId | None
    decode: NodeId
    resident: bool
    """D was chosen because it holds the conversation."""
    replica: bool
    local_only: bool = False
    evicted_d: int = 0
    """Of `uncached_d`, what D had of the conversation and is believed to have evicted."""
    d_evicted_share: float = 0.0
    """Of the history of D's later turns of late, the share that it had evicted."""

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt."""
        return self.n_ctx + self.n_in

    @property
    def backlog_ms(self) -> float:
        """What the backlogs add to the TTFT saved by going local."""
        return self.p_backlog_ms + self.link_backlog_ms - self.d_backlog_ms
