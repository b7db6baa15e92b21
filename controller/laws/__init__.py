"""Control laws by name. To add one: a file and a line here."""

from __future__ import annotations

from .aimd import Aimd
from .protocol import LawMaker
from .z_integral import ZIntegral

LAWS: dict[str, LawMaker] = {"aimd": Aimd, "z_integral": ZIntegral}
DEFAULT_LAW = "z_integral"
