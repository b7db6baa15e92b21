"""Control laws by name. To add one: a file and a line here."""

from __future__ import annotations

from .aimd import Aimd
from .protocol import Law

LAWS: dict[str, type[Law]] = {"aimd": Aimd}
"""Classes whose defaults are the shipped settings."""
DEFAULT_LAW = "aimd"
