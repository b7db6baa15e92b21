"""Problems of a specification: where, which rule, what is wrong, and what to write instead.

A reader collects every problem of a file before it gives up, so that one run shows all there is to mend.

`CODES` says what each code means. E is a mistake; W is advice, with which a file is used all the same.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_SHOWN_CHARACTERS = 60

CODES = {
    "E100": "not YAML",
    "E101": "unknown key",
    "E102": "a key twice",
    "E103": "a key is missing",
    "E104": "wrong type of value",
    "E105": "bad name",
    "E106": "a name used twice",
    "E107": "empty file",
    "E108": "anchor, alias or tag",
    "E109": "too large, too many values or too deep",
    "E110": "the file cannot be read, or is not UTF-8",
    "E111": "a label name that is reserved or none",
    "E112": "unknown version",
    "E201": "not an objective",
    "E202": "unknown signal",
    "E203": "not a duration, or no unit",
    "E204": "percent or share out of range",
    "E205": "a slice or window that does not fit",
    "E207": "duration out of range",
    "E208": "not a range of turns",
    "E209": "can never count a turn",
    "E210": "keys that exclude each other",
    "E211": "unknown tenant or preset",
    "E301": "a burn rule that can never fire",
    "E401": "counts no turn of the running installation",
    "E601": "no counterpart in Trimtab (OpenSLO)",
    "W206": "follows from another objective",
    "W302": "a burn rule that would fire inside the budget, raised to 1",
    "W303": "one slow turn breaks a slice",
    "W304": "too few turns in a slice to prove the percentile",
    "W305": "the engines' own histograms have no bound there",
    "W501": "no runbook",
    "W601": "left out of an import",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake; line and column are 1-based."""

    source: str
    line: int
    column: int
    code: str
    message: str
    fix: str

    @property
    def advice(self) -> bool:
        """The file can be used all the same."""
        return self.code.startswith("W")

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
        """Takes one; the same one twice is one."""
        problem = Problem(self.source, line, column, code, message, fix)
        if problem not in self._found[-8:]:
            self._found.append(problem)

    def __iter__(self) -> Iterator[Problem]:
        """What was found so far."""
        return iter(self._found)

    def raise_any(self) -> None:
        """Raises SpecError with the mistakes, if there are any; advice is none."""
        mistakes = [problem for problem in self._found if not problem.advice]
        if mistakes:
            raise SpecError(mistakes)


def quoted(text: str) -> str:
    """`text` in double quotes, shortened and on one line, safe to print whatever the file contained."""
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    # A YAML escape can spell half a surrogate pair, which no terminal or log file accepts.
    return json.dumps(shown, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A fix for a word that is none of `known`: the nearest, or the list."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word[:64].lower(), spelled, n=1)
    return f"did you mean {spelled[near[0]]}?" if near else f"use one of {', '.join(known)}"
