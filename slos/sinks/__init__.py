"""Sinks: a notice in the shape that a kind of receiver understands. To add one: a file and a line here."""

from collections.abc import Callable

from ..notice import Notice
from .webhook import payload

SINKS: dict[str, Callable[[Notice, str], dict[str, object]]] = {"webhook": payload}
"""(notice, external URL) → a JSON-ready body."""
DEFAULT_SINK = "webhook"
