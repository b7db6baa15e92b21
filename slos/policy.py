"""What a file says beside its promises: how long a budget lasts, when to tell a human, and the whole declaration.

    Budget        what may be bad, over how long: a share of the turns, or of the slices that were measured
    AlertPolicy   the breach rule, the burn rules, what silence means, and where the runbook is
    Declaration   the SLOs in their order with the alert policy: what a reload replaces as one

All times are in seconds and all shares in [0, 1]. The defaults are those of the design notes (burn windows after
the SRE workbook, scaled to 28 days); a burn rule's factor is spend x period / long window. Left out: reading the
file (`spec.py`), and what is done with it (`alerts.py`, `ledger.py`).
"""

from dataclasses import dataclass
from enum import StrEnum

from .objective import Slo

DAY_S = 86_400.0


class Severity(StrEnum):
    """Whether somebody is woken up."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Breach:
    """Fires when the last slice breaks the promise beyond doubt for `for_s`, resolves after `clear_s` inside."""

    severity: Severity = Severity.PAGE
    confidence: float = 0.999
    for_s: float = 60.0
    clear_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Burn:
    """Fires when both windows spend the budget so fast that `long_s` alone takes the share `spend` of it."""

    severity: Severity
    spend: float
    long_s: float
    short_s: float
    for_s: float = 0.0

    def factor(self, over_s: float) -> float:
        """How many times faster than allowed, for a budget that lasts `over_s`; below 1 nothing is overspent."""
        return max(1.0, self.spend * over_s / self.long_s)


BURNS = (
    Burn(Severity.PAGE, 0.02, 3_600.0, 300.0, 60.0),
    Burn(Severity.PAGE, 0.05, 6 * 3_600.0, 1_800.0, 300.0),
    Burn(Severity.TICKET, 0.10, DAY_S, 7_200.0, 900.0),
    Burn(Severity.TICKET, 0.10, 3 * DAY_S, 6 * 3_600.0, 3_600.0),
)


@dataclass(frozen=True, slots=True)
class NoData:
    """Fires when nothing was measured for `after_s` although traffic came in."""

    after_s: float = 900.0
    severity: Severity = Severity.TICKET


@dataclass(frozen=True, slots=True)
class AlertPolicy:
    """When to tell whom; `{slo}` in `runbook` (a URL) stands for the SLO's name."""

    runbook: str | None = None
    breach: Breach = Breach()
    burns: tuple[Burn, ...] = BURNS
    min_bad_events: int = 10
    no_data: NoData = NoData()


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a file declares, its SLOs in their order; `source` names the file."""

    slos: tuple[Slo, ...] = ()
    service: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    alerts: AlertPolicy = AlertPolicy()
    source: str = ""
    rps: float | None = None
    """Turns a second that are expected; only advice and explanations reckon with it."""


UNDECLARED = Declaration()
"""An installation without SLOs."""
