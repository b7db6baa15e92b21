"""The pin as the control process shows it. The file is the routers' business (`router/pin.py`); it is read here for
display and written for the API, and a damaged one is a warning, not an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from router.pin import Pin, read_pin, write_pin


@dataclass(frozen=True, slots=True)
class PinFile:
    """What the file asks for: `pin` None means nothing; `warning` says why it could not be read."""

    pin: Pin | None = None
    warning: str = ""


def look(state_dir: Path) -> PinFile:
    """The file as it is now. Never raises."""
    try:
        return PinFile(read_pin(state_dir))
    except (OSError, ValueError) as error:
        return PinFile(warning=f"{error}. Routers keep the pin that they had")


def put(state_dir: Path, x: float | None, by: str, at_iso: str) -> PinFile:
    """Replace or lift the pin. Raises ValueError for a share outside 0..1, OSError where it cannot be written."""
    pin = None if x is None else Pin(x, by, at_iso)
    write_pin(state_dir, pin)
    return PinFile(pin)
