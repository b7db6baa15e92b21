"""What is not in a declaration and the rules need: where the counters are found, and how often rules are evaluated."""

import re
from dataclasses import dataclass

from ..policy import Declaration

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
RESERVED = frozenset(
    {"slo", "service", "severity", "family", "evaluator", "long_window", "short_window", "burn_factor"}
)
"""Labels that the rules set themselves."""


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Raises ValueError, with the fix, for what Prometheus would refuse or misread."""

    job: str = "trimtab"
    """The scrape job of the admin port."""
    match: tuple[tuple[str, str], ...] = ()
    """More labels of the series, such as a cluster; they are on every rule's result too, so that the rules of two
    installations do not clash in one Prometheus."""
    dashboard: str | None = None
    """A URL for the annotations; `{slo}` stands for the SLO's name."""
    interval_s: float = 30.0
    """Of the indicators and the alerts."""
    period_interval_s: float = 300.0
    """Of the sums over the budget's period."""
    keep_firing_s: float = 300.0
    """How long a burn alert fires on once its condition has ended, so that it does not flap."""

    def __post_init__(self) -> None:
        if not self.job or not self.job.isprintable():
            raise ValueError("--job is empty; write the job_name of the scrape configuration")
        names = [name for name, _ in self.match]
        for name in names:
            if not _LABEL_NAME.fullmatch(name) or name.startswith("__") or name == "job":
                raise ValueError(f"{name!r} is no label to match on; write --match cluster=eu or the like")
            if name in RESERVED or names.count(name) > 1:
                raise ValueError(f"the label {name!r} is set by the rules or named twice; leave it out")
        if not 1.0 <= self.interval_s <= self.period_interval_s:
            raise ValueError("rules are evaluated every second at most, and sums not more often than indicators")

    def check(self, declaration: Declaration) -> None:
        """Raises ValueError where a window is too short to be evaluated in."""
        for burn in declaration.alerts.burns:
            if burn.short_s < 2 * self.interval_s:
                raise ValueError(
                    f"the short window of {burn.short_s:g} s holds less than two evaluations, which come every "
                    f"{self.interval_s:g} s; write a longer one"
                )
