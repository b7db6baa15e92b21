"""Engine profiles: the step-time model as data.

One engine iteration with b decodes over K tokens of context and prefill chunks (m_i new tokens on c_i cached)
takes, in ms,

    linear(b + Σ m_i) + K·kv_read + Σ attention·m_i·(c_i + m_i/2) + step_fixed + per_seq·(b + chunks) + stall

`linear` is a piecewise-linear table of GEMM time over the tokens in the step. A request meets `front` and
`tokenise` before the engine's scheduler sees it and `first_token` after its step ends. Source: the fit to
measured H100 points described in docs/explanation/emulator.md; `provenance` says per profile what was fitted
and what was derived.

Left out: CUDA-graph and first-request jitter, speculative decoding.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

KIB = 1024
_DENSE_TOKENS = 16_384  # steps up to twice the token budget are looked up, longer ones extrapolated


NVLINK_GB_S = 150.0
"""Effective, as the paper uses it: the speed that its slower links are emulated on."""

BANDWIDTHS_GB_S: dict[str, float] = {"nvlink": NVLINK_GB_S, "ib-ndr": 50.0, "ib-hdr": 25.0, "100gbe": 10.0}
"""The four interconnects of the paper's Figure 5, effective GB/s."""


@dataclass(frozen=True, slots=True)
class Link:
    """The KV path of one prefill node: one transfer at a time.

        send  = fixed + per_token · T + contended · u + bytes / bandwidth          on P's side of the link, serial
        stall = receive_stall                                                      of the D step that takes it in

    T is what is sent: what D lacks, or with `whole_prompt` the prompt. `contended` is paid where another send of
    this P is queued, and u is what P had to compute. With `stalls_reader` the bytes cost D's loop instead of the
    link, and only what exceeds NVLink (the paper's Equation 2 and its way to emulate slower links).
    """

    fixed_ms: float
    bandwidth_gb_s: float
    hop_ms: float
    """Once per transferred turn: P's reply, the router and D's front, until D's scheduler has the request."""
    receive_stall_ms: float
    """Added to the D step in which a received sequence starts to decode."""
    per_token_ms: float = 0.0
    contended_per_token_ms: float = 0.0
    whole_prompt: bool = False
    stalls_reader: bool = False

    def __post_init__(self) -> None:
        _require(
            "link",
            0 < self.bandwidth_gb_s < inf,
            f"bandwidth must be positive, got {self.bandwidth_gb_s} GB/s",
        )
        times = (
            self.fixed_ms,
            self.hop_ms,
            self.receive_stall_ms,
            self.per_token_ms,
            self.contended_per_token_ms,
        )
        _require("link", all(0 <= ms < inf for ms in times), f"times must be 0 ms or more, got {times}")

    def send_ms(self, tokens: int, computed: int, queued: bool, kv_bytes_per_token: int) -> float:
        """How long one transfer of `tokens` holds the link, of which P `computed` some."""
        took = self.fixed_ms + self.per_token_ms * tokens
        if queued:
            took += self.contended_per_token_ms * computed
        if not self.stalls_reader:
            took += wire_ms(tokens, kv_bytes_per_token, self.bandwidth_gb_s)
        return took

    def stall_ms(self, tokens: int, kv_bytes_per_token: int) -> float:
        """What taking in `tokens` adds to one step of D."""
        if not self.stalls_reader:
            return self.receive_stall_ms
        return self.receive_stall_ms + injected_delay_ms(tokens, kv_bytes_per_token, self.bandwidth_gb_s)


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Constants of one model on one kind of hardware. Sizes are in tokens unless the name says otherwise."""

    name: str
    model: str
    hardware: str
    provenance: str
    linear_ms: tuple[tuple[int, float], ...]
    kv_read_ms_per_token: float
    attention_ms_per_token2: float
    step_fixed_ms: float
    per_sequence_ms: float
    front_ms: float
    tokenise_ms_per_token: float
    first_token_ms: float
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    token_budget: int
    max_sequences: int
    block_tokens: int
    lease_s: float
    reuse_responses: bool
    """A finished answer stays cached, token for token: the next turn finds it."""
    link: Link
    preempts: bool = False
    """Memory is taken token by token, and the last admitted request gives way when there is none left (vLLM V1).
    Without it a request waits until its whole answer has room."""

    def __post_init__(self) -> None:
        who, points = f"profile {self.name}", self.linear_ms
        at = [tokens for tokens, _ in points]
        rising = len(at) > 1 and at[0] >= 0 and at == sorted(set(at))
        _require(who, rising, "linear_ms needs two or more points with rising token counts")
        _require(who, all(0 < ms < inf for _, ms in points), "linear_ms needs positive times")
        _require(who, points[-1][1] >= points[-2][1], "linear_ms must not fall at its end")
        costs = (
            self.kv_read_ms_per_token,
            self.attention_ms_per_token2,
            self.step_fixed_ms,
            self.per_sequence_ms,
        )
        delays = (self.front_ms, self.tokenise_ms_per_token, self.first_token_ms)
        _require(who, all(0 <= ms < inf for ms in (*costs, *delays)), "times must be 0 ms or more")
        sizes = (self.kv_bytes_per_token, self.kv_capacity_tokens, self.max_sequences, self.block_tokens)
        _require(who, all(size >= 1 for size in sizes), f"sizes must be 1 or more, got {sizes}")
        # As vLLM demands: else a full batch leaves no room for a chunk and prompts starve.
        _require(who, self.token_budget >= self.max_sequences, "token_budget must not be below max_sequences")
        _require(who, 0 < self.lease_s < inf, f"lease_s must be positive, got {self.lease_s}")

    def with_bandwidth(self, gb_s: float) -> EngineProfile:
        """The same engine behind a link of another speed, in GB/s."""
        return replace(self, link=replace(self.link, bandwidth_gb_s=gb_s))

    def with_link(self, link: Link) -> EngineProfile:
        """The same engine behind another kind of link."""
        return replace(self, link=link)


class StepTime:
    """The step-time formula of one profile, with `linear` expanded to one entry per token count."""

    __slots__ = ("_dense", "_tail_slope", "attention", "kv_read", "per_sequence", "step_fixed")

    def __init__(self, profile: EngineProfile) -> None:
        self._dense = _dense(profile.linear_ms)
        (t0, v0), (t1, v1) = profile.linear_ms[-2:]
        self._tail_slope = (v1 - v0) / (t1 - t0)
        self.kv_read = profile.kv_read_ms_per_token
        self.attention = profile.attention_ms_per_token2
        self.step_fixed = profile.step_fixed_ms
        self.per_sequence = profile.per_sequence_ms

    def linear_ms(self, tokens: int) -> float:
        """GEMM time of a step with that many tokens."""
        if tokens <= _DENSE_TOKENS:
            return self._dense[tokens]
        return self._dense[-1] + (tokens - _DENSE_TOKENS) * self._tail_slope

    def decode_base_ms(self, batch: int) -> float:
        """The part of a decode-only step that does not depend on the context."""
        return self.linear_ms(batch) + self.step_fixed + self.per_sequence * batch

    def mixed_ms(self, batch: int, context_tokens: int, chunks: list[tuple[int, int]], stall_ms: float) -> float:
        """A step with `chunks` of (new, cached) tokens beside `batch` decodes over `context_tokens`."""
        total = batch
        attention = 0.0
        for new, cached in chunks:
            total += new
            attention += new * (cached + new / 2)
        return (
            self.linear_ms(total)
            + context_tokens * self.kv_read
            + attention * self.attention
            + self.step_fixed
            + self.per_sequence * (batch + len(chunks))
            + stall_ms
        )


def _require(who: str, holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"{who}: {otherwise}")


@lru_cache(maxsize=32)
def _dense(points: tuple[tuple[int, float], ...]) -> tuple[float, ...]:
    tokens = [float(at) for at, _ in points]
    return tuple(_interpolate(points, tokens, float(n)) for n in range(_DENSE_TOKENS + 1))


def _interpolate(points: tuple[tuple[int, float], ...], tokens: list[float], n: float) -> float:
    if n <= tokens[0]:
        return points[0][1]
    right = min(bisect_right(tokens, n), len(points) - 1)
    (t0, v0), (t1, v1) = points[right - 1], points[right]
    return v0 + (v1 - v0) * (n - t0) / (t1 - t0)


def wire_ms(tokens: int, kv_bytes_per_token: int, bandwidth_gb_s: float) -> float:
    """Time of the bytes alone: B(ψ)/β of the paper's Equation 2 (B.6)."""
    return tokens * kv_bytes_per_token / (bandwidth_gb_s * 1e6)


def injected_delay_ms(
    tokens: int, kv_bytes_per_token: int, target_gb_s: float, nvlink_gb_s: float = NVLINK_GB_S
) -> float:
    """The paper's Equation 2: what a slower link adds to a transfer that was measured over NVLink."""
    return max(
        0.0,
        wire_ms(tokens, kv_bytes_per_token, target_gb_s) - wire_ms(tokens, kv_bytes_per_token, nvlink_gb_s),
    )


# Medians of linear-layer kernels on an H100, scaled from a 7B to the 8B model (tokens, ms). Tiles make a staircase.
# fmt: off
_LINEAR_8B_H100_MS = (
    (1, 6.4), (16, 6.6), (64, 6.66), (72, 8.11), (96, 8.21), (104, 7.19), (128, 7.2), (136, 9.48), (144, 8.49),
    (192, 8.32), (200, 10.15), (256, 10.2), (320, 10.84), (328, 12.15), (384, 12.21), (392, 13.83),
    (448, 13.8), (512, 13.2), (520, 16.87), (576, 16.6), (640, 17.18), (768, 20.49), (896, 22.39),
    (1024, 22.8), (1280, 28.61), (1536, 36.01), (2048, 43.5), (4096, 89),
)
# fmt: on

NIXL_50 = Link(fixed_ms=4.0, bandwidth_gb_s=50.0, hop_ms=12.0, receive_stall_ms=0.5)
"""NIXL over InfiniBand: D pulls what it lacks. Estimates."""

P2P_NCCL = Link(
    fixed_ms=25.0,
    bandwidth_gb_s=NVLINK_GB_S,
    hop_ms=27.0,
    receive_stall_ms=3.0,
    per_token_ms=0.010,
    contended_per_token_ms=0.055,
    whole_prompt=True,
    stalls_reader=True,
)
"""vLLM's P2pNccl connector of the measured runs: P sends the whole prompt, at some 60 ms a request and 10 us a token
whatever the wire. Fitted by hand to the published measurements."""

LINKS: dict[str, Link] = {"nixl": NIXL_50, "p2p-nccl": P2P_NCCL}

LLAMA_3_1_8B_H100 = EngineProfile(
    name="llama-3.1-8b-h100",
    model="llama-3.1-8b",
    hardware="1x H100 80GB per engine",
    provenance="fitted by hand to published measurements (4x H100, vLLM 0.13-dev); NIXL link constants are estimates",
    linear_ms=_LINEAR_8B_H100_MS,
    kv_read_ms_per_token=128 * KIB / 2.8e9,
    attention_ms_per_token2=4 * 4096 * 32 / 4.0e11,
    step_fixed_ms=1.3,
    per_sequence_ms=0.06,
    front_ms=12.0,
    tokenise_ms_per_token=0.012,
    first_token_ms=9.0,
    kv_bytes_per_token=128 * KIB,
    kv_capacity_tokens=390_000,
    token_budget=8192,
    max_sequences=1024,
    block_tokens=16,
    lease_s=30.0,
    reuse_responses=True,
    link=NIXL_50,
)

LLAMA_3_1_70B_H100_TP4 = EngineProfile(
    name="llama-3.1-70b-h100-tp4",
    model="llama-3.1-70b",
    hardware="4x H100 80GB (TP4) per engine",
    provenance="derived: scaled from the 8B fit by weights, FLOPs and KV bytes; not measured; "
    "NIXL link constants are estimates",
    linear_ms=((1, 16.0), (157, 16.0), (8192, 5.0 + 0.070 * 8192)),
    kv_read_ms_per_token=80 * KIB / 2.8e9,  # each of four GPUs reads a quarter of 320 KiB
    attention_ms_per_token2=4 * 8192 * 80 / 1.44e12,
    step_fixed_ms=1.3,
    per_sequence_ms=0.06,
    front_ms=12.0,
    tokenise_ms_per_token=0.012,
    first_token_ms=9.0,
    kv_bytes_per_token=320 * KIB,
    kv_capacity_tokens=400_000,
    token_budget=8192,
    max_sequences=1024,
    block_tokens=16,
    lease_s=30.0,
    reuse_responses=True,
    link=replace(NIXL_50, bandwidth_gb_s=200.0),
)

LLAMA_3_1_70B_A100_TP4 = replace(
    LLAMA_3_1_70B_H100_TP4,
    name="llama-3.1-70b-a100-tp4",
    hardware="4x A100 80GB (TP4) per engine",
    provenance="derived: the 70B H100 profile with its times scaled by data-sheet ratios, .61 of the memory bandwidth "
    "and .315 of the dense FLOPs; not measured",
    linear_ms=((1, 24.6), (88, 24.6), (8192, 5.0 + 0.222 * 8192)),
    kv_read_ms_per_token=80 * KIB / (2.8e9 * 0.61),
    attention_ms_per_token2=4 * 8192 * 80 / (1.44e12 * 0.315),
)
"""For fleets of mixed hardware: it decodes at two thirds of the speed, and prefills at a third."""

# Twice the 8B's weights less a little: 14.8 to 8.03 billion parameters.
_QWEN_14B_SCALE = 14.8 / 8.03

QWEN_2_5_14B_H100 = EngineProfile(
    name="qwen2.5-14b-h100",
    model="qwen2.5-14b",
    hardware="1x H100 80GB per engine",
    provenance="derived: the 8B fit with GEMMs scaled by parameters (14.8 to 8.03 billion), attention and KV by layers "
    "and heads (48 layers, 40 and 8 heads), KV room by what the weights leave; not measured; NIXL link constants are "
    "estimates",
    linear_ms=tuple((tokens, round(ms * _QWEN_14B_SCALE, 3)) for tokens, ms in _LINEAR_8B_H100_MS),
    kv_read_ms_per_token=192 * KIB / 2.8e9,
    attention_ms_per_token2=4 * 5120 * 48 / 4.0e11,
    step_fixed_ms=1.3,
    per_sequence_ms=0.06,
    front_ms=12.0,
    tokenise_ms_per_token=0.012,
    first_token_ms=9.0,
    kv_bytes_per_token=192 * KIB,
    kv_capacity_tokens=190_000,
    token_budget=8192,
    max_sequences=1024,
    block_tokens=16,
    lease_s=30.0,
    reuse_responses=True,
    link=NIXL_50,
)


def _experts_ms(tokens: int) -> float:
    """A step of Qwen3-30B-A3B by roofline: the weights that so many tokens touch (1.5 billion shared, 29 billion in 128
    experts of which each token takes 8) at 2.6 TB/s, or 3.3 billion active parameters a token at 365 TFLOP/s."""
    touched = 1.5e9 + 29.0e9 * (1 - (1 - 8 / 128) ** tokens)
    return max(2 * touched / 2.6e9, 2 * 3.3e9 * tokens / 3.65e11)


QWEN_3_30B_A3B_H100 = EngineProfile(
    name="qwen3-30b-a3b-h100",
    model="qwen3-30b-a3b",
    hardware="1x H100 80GB per engine",
    provenance="derived: weights touched and FLOPs of a mixture of experts by roofline, attention and KV by layers and "
    "heads (48 layers, 32 and 4 heads), the rest as the 8B fit; not measured; NIXL link constants are estimates",
    linear_ms=tuple((1 << at, round(_experts_ms(1 << at), 3)) for at in range(14)),
    kv_read_ms_per_token=96 * KIB / 2.8e9,
    attention_ms_per_token2=4 * 4096 * 48 / 4.0e11,
    step_fixed_ms=1.3,
    per_sequence_ms=0.06,
    front_ms=12.0,
    tokenise_ms_per_token=0.012,
    first_token_ms=9.0,
    kv_bytes_per_token=96 * KIB,
    kv_capacity_tokens=65_000,
    token_budget=8192,
    max_sequences=1024,
    block_tokens=16,
    lease_s=30.0,
    reuse_responses=True,
    link=NIXL_50,
)

LLAMA_3_1_8B_H100_AS_MEASURED = replace(
    LLAMA_3_1_8B_H100,
    name="llama-3.1-8b-h100-as-measured",
    provenance="fitted by hand to published measurements (4x H100, vLLM 0.13-dev, P2pNccl), front_ms by least error "
    "over local turns at low load; answers are not reused, as in those runs",
    front_ms=9.0,
    reuse_responses=False,
    link=P2P_NCCL,
)
"""The engines of the PPD paper's own measurements, for comparison with them. Of whole milliseconds, `front_ms` has the
least error of second turns' P50 TTFT where they run locally, up to 2 QPS: 10.5 %, and 12.9 % at 12 ms."""

PROFILES: dict[str, EngineProfile] = {
    p.name: p
    for p in (
        LLAMA_3_1_8B_H100,
        LLAMA_3_1_8B_H100_AS_MEASURED,
        QWEN_2_5_14B_H100,
        QWEN_3_30B_A3B_H100,
        LLAMA_3_1_70B_H100_TP4,
        LLAMA_3_1_70B_A100_TP4,
    )
}
