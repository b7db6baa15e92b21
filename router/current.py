"""What this router acts on now: one publication, swapped by reference, so that a turn sees one policy from
start to end."""

from __future__ import annotations

from .policy import Publication


class Current:
    """The holder. Readers take `publication` once per turn."""

    __slots__ = ("publication",)

    def __init__(self, publication: Publication) -> None:
        self.publication = publication

    def swap(self, publication: Publication) -> bool:
        """Take a newer publication; an older or equal version is ignored (a late reply of a long poll)."""
        if publication.version <= self.publication.version:
            return False
        self.publication = publication
        return True
