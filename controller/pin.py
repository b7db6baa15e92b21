"""The pin as the control process shows it. The file is the routers' business (`router/pin.py`); it is read here for
display and written for the API, and a damaged one is a warning, not an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.pin import Pin, lifted_by, read_pin, write_pin

from .audit import AuditRow

PINNED, LIFTED = "pin", "unpin"


@dataclass(frozen=True, slots=True)
class PinFile:
    """What the file asks for: `pin` None means nothing; `warning` says why it could not be read."""

    pin: Pin | None = None
    warning: str = ""
    lifted_by: str = ""
    """Who lifted the last one."""


def look(state_dir: Path) -> PinFile:
    """The file as it is now. Never raises."""
    try:
        return PinFile(read_pin(state_dir), lifted_by=lifted_by(state_dir))
    except (OSError, ValueError) as error:
        return PinFile(warning=f"{error}. Routers keep the pin that they had")


def put(state_dir: Path, x: float | None, by: str, at_iso: str) -> PinFile:
    """Replace or lift the pin. Raises ValueError for a share outside 0..1, OSError where it cannot be written."""
    pin = None if x is None else Pin(x, by, at_iso)
    write_pin(state_dir, pin, by)
    return PinFile(pin, lifted_by="" if pin else by)


def noticed(pin: Pin | None, rows: Sequence[AuditRow], at_s: float, by: str = "") -> AuditRow | None:
    """What goes on record about the pin in force, None if it is there already. `rows` are the latest, newest first.
    However a pin was set, by the API, by `trimtab pin` or while this process was dead, it is recorded once."""
    last = next((row for row in rows if row.action in (PINNED, LIFTED)), None)
    before = "off" if last is None or last.action == LIFTED else last.detail.rpartition(" -> ")[2].partition(",")[0]
    if pin is None:
        return AuditRow(at_s, by, LIFTED, f"{before} -> off") if last is not None and last.action == PINNED else None
    now = f"x={pin.x:g}, {pin.at}"
    same = last is not None and (last.action, last.actor) == (PINNED, pin.by) and last.detail.endswith(now)
    return None if same else AuditRow(at_s, pin.by, PINNED, f"{before} -> {now}")
