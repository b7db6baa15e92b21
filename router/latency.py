"""The router's latency model: ten constants, fitted to Phase 1, that fill the table and predict backlogs.

With gemm(n) = max(floor, base + token·n), T the whole prompt, u what a node lacks of it, b sequences decoding
on D, K ≈ b·T:

    prefill(u)  = gemm(u) + attention·u·(T − u/2)
    step(b)     = gemm(b) + sequence·b + kv_read·K
    local       = front + tokenise·u_D + step(b)/2 + gemm(u_D + b) + sequence·(b + 1) + kv_read·K
                  + attention·u_D·(T − u_D/2)
    remote      = front + tokenise·u_P + prefill(u_P) + handoff + transfer·u_D + 1.5·step(b + 1)
    stall       = max(0.3, gemm(u_D + b) − gemm(b) + sequence + attention·u_D·(T − u_D/2))
    saved       = remote − local      [ms];      cost = stall · (b + 1)      [ms × sequences]

The half steps are the wait for the step under way; with b = 0 there is none. Backlogs are no part of it: they
add exactly and are known at the moment of the decision. Source of the form: the emulator's step-time model
and docs/decisions/0008. Left out: what a receive costs D, steps beyond one token budget.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

STALL_FLOOR_MS = 0.3


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Constants in ms, per token or per sequence as their names say. All must be finite and not negative."""

    front_ms: float
    tokenise_ms_per_token: float
    floor_ms: float
    base_ms: float
    token_ms: float
    attention_ms_per_token2: float
    sequence_ms: float
    kv_read_ms_per_token: float
    handoff_ms: float
    transfer_ms_per_token: float

    def __post_init__(self) -> None:
        for constant in fields(self):
            value = getattr(self, constant.name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"latency model: {constant.name} must be finite and not negative, got {value}")

    def gemm_ms(self, tokens: float) -> float:
        """Step time by the number of tokens in the step."""
        return max(self.floor_ms, self.base_ms + self.token_ms * tokens)

    def attention_ms(self, uncached: float, prompt: float) -> float:
        """Attention of the last `uncached` tokens of a prompt over everything before them."""
        return self.attention_ms_per_token2 * uncached * (prompt - uncached / 2)

    def prefill_ms(self, uncached: float, prompt: float) -> float:
        """Time of a prompt on an idle node: the unit of a backlog."""
        return self.gemm_ms(uncached) + self.attention_ms(uncached, prompt)

    def decode_step_ms(self, batch: float, context: float) -> float:
        """One decode step of `batch` sequences over `context` tokens in total."""
        return self.gemm_ms(batch) + self.sequence_ms * batch + self.kv_read_ms_per_token * context

    def transfer_ms(self, missing: float) -> float:
        """Time on the link: the unit of a link backlog."""
        return self.transfer_ms_per_token * missing

    def local_ms(self, uncached_d: float, prompt: float, batch: float) -> float:
        """TTFT of an append-prefill on D with no backlog."""
        context = batch * prompt
        waiting = self.decode_step_ms(batch, context) / 2 if batch > 0 else 0.0
        return (
            self.front_ms
            + self.tokenise_ms_per_token * uncached_d
            + waiting
            + self.gemm_ms(uncached_d + batch)
            + self.sequence_ms * (batch + 1)
            + self.kv_read_ms_per_token * context
            + self.attention_ms(uncached_d, prompt)
        )

    def remote_ms(self, uncached_p: float, uncached_d: float, prompt: float, batch: float) -> float:
        """TTFT through P and a transfer with no backlog."""
        step = self.decode_step_ms(batch + 1, (batch + 1) * prompt)
        waiting = step / 2 if batch > 0 else 0.0
        return (
            self.front_ms
            + self.tokenise_ms_per_token * uncached_p
            + self.prefill_ms(uncached_p, prompt)
            + self.handoff_ms
            + self.transfer_ms(uncached_d)
            + waiting
            + step
        )

    def saved_ms(self, uncached_d: float, uncached_p: float, prompt: float, batch: float) -> float:
        """TTFT saved by going local; negative where local is slower."""
        return self.remote_ms(uncached_p, uncached_d, prompt, batch) - self.local_ms(uncached_d, prompt, batch)

    def stall_ms(self, uncached_d: float, prompt: float, batch: float) -> float:
        """What an append-prefill adds to the step of the sequences beside it."""
        gemm = self.gemm_ms(uncached_d + batch) - self.gemm_ms(batch)
        return max(STALL_FLOOR_MS, gemm + self.sequence_ms + self.attention_ms(uncached_d, prompt))

    def cost(self, uncached_d: float, prompt: float, batch: float) -> float:
        """What going local costs the sequences on D, itself included: ms × sequences."""
        return self.stall_ms(uncached_d, prompt, batch) * (batch + 1)

    def tpot_ms(self, batch: float, context: float, append_hz: float, uncached_d: float, prompt: float) -> float:
        """Time per output token while append-prefills of that size arrive at one D: step / (1 − the share of
        time they take)."""
        share = append_hz * self.stall_ms(uncached_d, prompt, batch) / 1e3
        return self.decode_step_ms(batch, context) / max(0.05, 1 - share)
