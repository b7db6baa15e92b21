"""The pin: an operator's switch that fixes the share of later turns that go local. It is a file in the state
directory, so that it works with the control process dead; the router looks at it twice a second. Who lifted the last
one stands in a file beside it, for the audit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "pin.json"
LIFTED = "pin-lifted.json"


@dataclass(frozen=True, slots=True)
class Pin:
    """`x` in 0..1, who set it, and when (ISO 8601)."""

    x: float
    by: str
    at: str

    def __post_init__(self) -> None:
        if not 0 <= self.x <= 1:
            raise ValueError(f"x is a share of turns, 0..1, got {self.x}")


def read_pin(folder: Path) -> Pin | None:
    """The pin in force, None without one. Raises ValueError with the place if the file is damaged."""
    path = folder / NAME
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Pin(float(value["x"]), str(value["by"]), str(value["at"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no pin ({error}); remove it or run `trimtab pin` again") from None


def write_pin(folder: Path, pin: Pin | None, lifted_by: str = "") -> None:
    """Set or lift the pin, atomically. Raises OSError."""
    path = folder / NAME
    if pin is None:
        if path.exists():
            _replace(folder / LIFTED, {"by": lifted_by})
        path.unlink(missing_ok=True)
        return
    _replace(path, asdict(pin))


def lifted_by(folder: Path) -> str:
    """Who lifted the last pin; empty if nobody knows."""
    try:
        return str(json.loads((folder / LIFTED).read_text(encoding="utf-8"))["by"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _replace(path: Path, value: object) -> None:
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(json.dumps(value) + "\n", encoding="utf-8")
    partial.replace(path)
