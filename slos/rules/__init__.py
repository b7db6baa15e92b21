"""Prometheus rules out of a declaration: what an operator who has Prometheus would otherwise write by hand.

    rule_file(declaration, options) -> RuleFile -> text()

Every rule reads the counters `trimtab_slo_valid_events_total` and `trimtab_slo_bad_events_total`, in which each turn is
judged already; none matches on a bucket's `le`, whose spelling differs between versions of Prometheus. What cannot be
said in PromQL is left out, and told: in the text as a comment, in `RuleFile.left_out` for whoever prints it.
"""

from ..policy import Declaration
from . import alerting, recording
from .layout import RuleFile
from .options import RuleOptions

__all__ = ["RuleFile", "RuleOptions", "rule_file"]


def rule_file(declaration: Declaration, options: RuleOptions | None = None) -> RuleFile:
    """All groups. Raises ValueError for a declaration without SLOs, and for options that do not fit it."""
    if not declaration.slos:
        raise ValueError("no SLO is declared: there is nothing to make rules of")
    options = options or RuleOptions()
    options.check(declaration)
    alerts, left_out = alerting.group(declaration, options)
    return RuleFile(
        (
            *recording.groups(declaration, options),
            alerts,
            alerting.health(declaration, options),
            alerting.system(declaration, options),
        ),
        declaration.source,
        left_out,
    )
