"""What an SLO means, in twelve characters: counts of two revisions are never added up.

The revision is a hash over signal, threshold, objective, conditions and match. The budget is not in it, for the same
counts fill a longer or shorter one. Nor are name, place in the file, description and labels: whoever rewords an SLO
keeps its history. A key that takes its default value
is left out, so that a later version of this program that adds one does not start every budget anew.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields

from .objective import Match, Slo

LENGTH = 12


def revision(slo: Slo) -> str:
    """The same in every process and after every restart."""
    meaning = {
        "signal": slo.signal.value,
        "threshold_s": slo.threshold_s,
        "objective": slo.objective,
        "conditions": [[each.signal.value, each.threshold_s] for each in slo.conditions],
        "match": _told(slo.match),
    }
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=LENGTH // 2).hexdigest()


def revisions(slos: Iterable[Slo]) -> dict[str, str]:
    """By name, in the order of declaration."""
    return {slo.name: revision(slo) for slo in slos}


def _told(match: Match) -> dict[str, object]:
    usual = Match()
    pairs = ((each.name, getattr(match, each.name), getattr(usual, each.name)) for each in fields(Match))
    return {name: here for name, here, default in pairs if here != default}
