"""Sinks: what a kind of receiver understands. To add one that is told of changes: a file and a line in `SINKS`.

Receivers of changes get a notice each, through an outbox (`deliver.py`). Alertmanager is told what is so, again and
again, and has a shell of its own (`alertmanagers.py`); what is told is always logged too.
"""

from collections.abc import Callable

from ..notice import Notice
from .webhook import payload

SINKS: dict[str, Callable[[Notice, str], dict[str, object]]] = {"webhook": payload}
"""(notice, external URL) → a JSON-ready body."""
DEFAULT_SINK = "webhook"
