"""The values of a YAML file with their places, and the few ways to take them apart.

Every scalar stays the text that was written, and its reader decides what it means: PyYAML by itself reads
`yes` as true, `12:30:00` as 45000 and `1e3` as text. Nothing here raises; what is wrong goes to `Problems`,
and None comes back.
"""

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
