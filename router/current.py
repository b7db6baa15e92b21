"""What this router acts on now: one publication, swapped by reference, so that a turn sees one policy from
start to end.

A pin overrides every arm until it is lifted. It is the operator's switch, works without the control process,
and is no part of the publication.
"""

from __future__ import annotations

from dataclasses import replace

from .policy import Publication


class Current:
    """The holder. Readers take `publication` once per turn."""

    __slots__ = ("_published", "pin_x", "publication")

    def __init__(self, publication: Publication) -> None:
        self._published = publication
        self.pin_x: float | None = None
        self.publication = publication

    @property
    def published_version(self) -> int:
        """Version of the publication in force, a pin or not."""
        return self._published.version

    def swap(self, publication: Publication) -> bool:
        """Take a newer publication; an older or equal version is ignored (a late reply of a long poll)."""
        if publication.version <= self._published.version:
            return False
        self._published = publication
        self._apply()
        return True

    def pin(self, x: float | None) -> None:
        """Send a fixed share of later turns local, whatever is published; None lifts it."""
        self.pin_x = x
        self._apply()

    def _apply(self) -> None:
        if self.pin_x is None:
            self.publication = self._published
        else:
            arms = {name: replace(policy, pin_x=self.pin_x) for name, policy in self._published.arms.items()}
            self.publication = replace(self._published, arms=arms)
