"""The values of a YAML file with their places, and the few ways to take them apart.

Every scalar stays the text that was written, and its reader decides what it means: PyYAML by itself reads
`yes` as true, `12:30:00` as 45000 and `1e3` as text. Nothing here raises; what is wrong goes to `Problems`,
and None comes back.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from .problem import Problems, did_you_mean, quoted

MAX_CHARACTERS = 300  # of one value; the patterns that read it take quadratic time on nonsense

REFUSED = "refused"
"""The tag of a node that stands for something already reported (an alias): its reader stays silent."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A value, its path in the file (`slos[0].max`), and where to point: at its key, or at a list's item."""

    path: str
    node: yaml.Node
    mark: yaml.Mark
    problems: Problems

    def complain(self, code: str, message: str, fix: str) -> None:
        """Reports a problem with this value."""
        line, column = self.mark.line + 1, self.mark.column + 1
        self.problems.add(line, column, code, f"{self.path or 'the file'}: {message}", fix)

    @property
    def line(self) -> int:
        """1-based."""
        return int(self.mark.line) + 1

    @property
    def kind(self) -> str:
        """What the value is, in words for a message."""
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list" if self.node.value else "an empty list"
        return quoted(self.node.value) if self.node.value.strip() else "nothing"


def fields(spot: Spot, known: Sequence[str]) -> dict[str, Spot] | None:
    """A mapping's values by key. Reports another type, and keys that are unknown, repeated, or not text."""
    if spot.node.tag == REFUSED:
        return None
    if not isinstance(spot.node, yaml.MappingNode):
        spot.complain("E104", f"must be a mapping, not {spot.kind}", f"write {known[0]}: and its value")
        return None
    found: dict[str, Spot] = {}
    for key, value in spot.node.value:
        if not isinstance(key, yaml.ScalarNode):
            Spot(spot.path, key, key.start_mark, spot.problems).complain(
                "E104", "a key must be text", f"use one of {', '.join(known)}"
            )
            continue
        shown = key.value if key.value in known else quoted(key.value)
        path = f"{spot.path}.{shown}" if spot.path else shown
        at = Spot(path, value, key.start_mark, spot.problems)
        if key.value not in known:
            at.complain("E101", "unknown key", did_you_mean(key.value, known))
        elif key.value in found:
            at.complain("E102", f"is already on line {found[key.value].line}", "keep one of them")
        else:
            found[key.value] = at
    return found


def items(spot: Spot) -> list[Spot] | None:
    """The items of a list that has at least one. Reports anything else."""
    if spot.node.tag == REFUSED:
        return None
    if not isinstance(spot.node, yaml.SequenceNode) or not spot.node.value:
        message = f"must be a list of one or more, not {spot.kind}"
        spot.complain("E104", message, "write each on a line of its own after -")
        return None
    numbered = enumerate(spot.node.value)
    return [Spot(f"{spot.path}[{at}]", node, node.start_mark, spot.problems) for at, node in numbered]


def scalar(spot: Spot, example: str) -> str | None:
    """The text of a value that is not empty, as written. Reports anything else, with the example."""
    if spot.node.tag == REFUSED:
        return None
    if not isinstance(spot.node, yaml.ScalarNode) or not spot.node.value.strip():
        spot.complain("E104", f"must be one value, not {spot.kind}", f"write {example}")
        return None
    text = str(spot.node.value).strip()
    if len(text) > MAX_CHARACTERS:
        spot.complain("E104", f"{spot.kind} is longer than {MAX_CHARACTERS} characters", f"write {example}")
        return None
    return text


_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DECIMAL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}")


def boolean(spot: Spot) -> bool | None:
    """true or false; not yes or on, which YAML readers disagree about."""
    text = scalar(spot, "true or false")
    if text is not None and text not in _BOOLEANS:
        spot.complain("E104", f"{quoted(text)} is not a boolean", "write true or false")
    return _BOOLEANS.get(text or "")


def choice(spot: Spot, known: Sequence[str]) -> str | None:
    """One of a few words."""
    text = scalar(spot, known[0])
    if text is None or text in known:
        return text
    spot.complain("E104", f"{quoted(text)} is not known", did_you_mean(text, known))
    return None


def whole(spot: Spot, least: int, most: int, example: str) -> int | None:
    """A whole number within the two."""
    text = scalar(spot, example)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text):
        spot.complain("E104", f"{quoted(text)} is no whole number", f"write {example}")
        return None
    if not least <= int(text) <= most:
        spot.complain("E104", f"{quoted(text)} is not from {least} to {most}", f"write {example}")
        return None
    return int(text)


def number(spot: Spot, above: float, most: float, code: str, example: str) -> float | None:
    """A number above the one and at most the other, written without an exponent."""
    text = scalar(spot, example)
    if text is None:
        return None
    if not _DECIMAL.fullmatch(text) or not above < float(text) <= most:
        message = f"{quoted(text)} is no number above {above:g} and at most {most:g}"
        spot.complain(code, message, f"write {example}")
        return None
    return float(text)


def names(spot: Spot, example: str) -> tuple[str, ...]:
    """One text, or a list of them."""
    spots = items(spot) if isinstance(spot.node, yaml.SequenceNode) else [spot]
    found = [scalar(item, example) for item in spots or ()]
    return tuple(text for text in found if text is not None)


def own_fields(spot: Spot, key: str) -> dict[str, Spot]:
    """The values of a mapping whose keys are the operator's own; `key` is for a message."""
    listed = spot.node.value if isinstance(spot.node, yaml.MappingNode) else []
    own = [str(name.value) for name, _ in listed if isinstance(name, yaml.ScalarNode)]
    return fields(spot, own or (key,)) or {}


def pairs(spot: Spot, key: str, example: str) -> dict[str, tuple[Spot, str | None]]:
    """The same where the values are texts, such as `example`."""
    return {name: (at, scalar(at, example)) for name, at in own_fields(spot, key).items()}
