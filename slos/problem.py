"""Problems of a specification: where, which rule, what is wrong, and what to write instead.

A reader collects every problem of a file before it gives up, so that one run shows all there is to mend.

Codes: E100 not YAML, E101 unknown key, E102 duplicate key, E103 missing key, E104 wrong type, E105 bad name,
E106 name used twice, E107 empty file, E108 anchor, alias or tag, E109 too large, E110 unreadable file, E112
unknown version, E201 no objective, E202 unknown signal, E203 no duration, E204 percent out of range, E207
duration out of range, E208 no range of turns, E209 can never count a turn, E210 keys that exclude each other.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake; line and column are 1-based."""

    source: str
    line: int
    column: int
    code: str
    message: str
    fix: str

    def __str__(self) -> str:
        text = f"{self.source}:{self.line}:{self.column} {self.code} {self.message}"
        return f"{text}; {self.fix}" if self.fix else text


class SpecError(Exception):
    """A specification that cannot be used; `problems` holds all of them, at least one, in order of line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Problems:
    """Where a reader puts what it finds."""

    __slots__ = ("_found", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[Problem] = []

    def add(self, line: int, column: int, code: str, message: str, fix: str) -> None:
        self._found.append(Problem(self.source, line, column, code, message, fix))

    def __iter__(self) -> Iterator[Problem]:
        """What was found so far."""
        return iter(self._found)

    def raise_any(self) -> None:
        """Raises SpecError if anything was found."""
        if self._found:
            raise SpecError(self._found)


def quoted(text: str) -> str:
    """`text` in double quotes, shortened and on one line, safe to print whatever the file contained."""
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    # A YAML escape can spell half a surrogate pair, which no terminal or log file accepts.
    return json.dumps(shown, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A fix for a word that is none of `known`: the nearest, or the list."""
    near = difflib.get_close_matches(word[:64].lower(), known, n=1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
