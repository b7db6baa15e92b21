"""What becomes of turns while no prefill node can be used.

    local   D computes the prompt itself, at most `most` prompts at once on each D; beyond that the turn is refused
    fail    the turn is refused

Refused means 503 with the code p_unavailable, at once. A fleet without prefill nodes, replicas, and requests that are
local by nature (`local_only`) do not come here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .placement import NoNode


class PrefillDown(StrEnum):
    """The two rules."""

    LOCAL = "local"
    FAIL = "fail"


class NoPrefill(NoNode):
    """The turn needs a prefill node, none can be used, and D must not do it."""


@dataclass(frozen=True, slots=True)
class PrefillDownPolicy:
    """The rule, and for `local` the cap."""

    rule: PrefillDown = PrefillDown.LOCAL
    most: int = 64

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"at least one prompt at once, got {self.most}; to refuse all use the rule fail")

    def admit(self, prompts: int) -> None:
        """A turn without a P; its D computes `prompts` prompts now. Raises NoPrefill."""
        if self.rule is PrefillDown.FAIL:
            raise NoPrefill("no prefill node can be used")
        if prompts >= self.most:
            raise NoPrefill(f"no prefill node can be used, and the decode node computes {prompts} prompts already")
