"""The differences that stay: which fields, and under which heading of docs/reference/engine-face.md each is justified.

`differences.json` holds every field with both values; here is what they have in common.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from .sheet import Difference

HERE = Path(__file__).parent
VLLM = HERE / "vllm-0.32.json"
VLLM_DEADLY = HERE / "vllm-0.32-deadly.json"
FIELDS = HERE / "differences.json"

REASONS = {
    "A late or second read": r"^(after the lease|the same parameters twice)/same text",
    "Messages that are none": r"^bad chat: (content|message|part|role) .*/error/(message|param)$",
    "The emulator's own metrics": r"^metric [PD] emulator_",
}
"""Heading: a pattern of fields."""


def load() -> list[Difference]:
    """The fields, with vLLM's value and the emulator's."""
    found = json.loads(FIELDS.read_text(encoding="utf-8"))
    return [Difference(field, one, other) for field, (one, other) in found.items()]


def dump(found: list[Difference]) -> str:
    """As `differences.json` has them."""
    return json.dumps({each.field: [each.one, each.other] for each in found}, indent=1, ensure_ascii=False) + "\n"


def reasons_of(field: str) -> list[str]:
    """The headings that speak of a field."""
    return [reason for reason, pattern in REASONS.items() if re.search(pattern, field)]
