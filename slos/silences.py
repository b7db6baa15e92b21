"""Who must not be told of what, until when, by whom and why.

A matcher compares one label of an alert: `slo=chat-*` (a glob; case matters) or `severity!=page`. A label that an
alert lacks is empty. All matchers of a silence have to hold. Silences hold back what is told, not what is measured:
budgets go on, and an alert that still fires when its silence ends is told then. Bounded in number and in size.

Alertmanager has silences of its own: what is posted there is never held back by these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

MAX_SILENCES = 500
MAX_MATCHERS = 20
MAX_TEXT = 500
MAX_LENGTH_S = 366 * 86_400.0
KEPT_S = 7 * 86_400.0
"""So long an expired silence is still shown."""

_MATCHER = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]{0,99})(!?=)(.{0,200})")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label."""

    label: str
    pattern: str
    equal: bool = True

    def __str__(self) -> str:
        return f"{self.label}{'=' if self.equal else '!='}{self.pattern}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        return fnmatchcase(labels.get(self.label, ""), self.pattern) is self.equal


@dataclass(frozen=True, slots=True)
class Silence:
    """Times in seconds since the epoch."""

    id: str
    matchers: tuple[Matcher, ...]
    starts_s: float
    ends_s: float
    author: str
    comment: str

    def active(self, now_s: float) -> bool:
        return self.starts_s <= now_s < self.ends_s

    def silences(self, labels: Mapping[str, str], now_s: float) -> bool:
        """Whether nobody is to be told now of an alert with these labels."""
        return self.active(now_s) and all(matcher.matches(labels) for matcher in self.matchers)


def matcher(text: str) -> Matcher:
    """`label=glob` or `label!=glob`. Raises ValueError with what to write."""
    found = _MATCHER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:80]!r} is no matcher; write label=value, label!=value or label=begin*")
    return Matcher(found[1], found[3].strip('"'), found[2] == "=")


def silence(id: str, matchers: Iterable[str], starts_s: float, length_s: float, author: str, comment: str) -> Silence:
    """A silence from what an operator gave. Raises ValueError with what to write."""
    found = tuple(matcher(text) for text in matchers)
    if not 1 <= len(found) <= MAX_MATCHERS:
        raise ValueError(f"a silence has 1 to {MAX_MATCHERS} matchers; write e.g. slo=chat-ttft")
    if all(not one.equal or not one.pattern.strip("*") for one in found):
        raise ValueError("this would silence everything; write at least one label=value")
    if not 0.0 < length_s <= MAX_LENGTH_S:
        raise ValueError("a silence ends within a year; write a time such as 2h")
    if not author.strip() or not comment.strip():
        raise ValueError("a silence says by whom and why; give an author and a comment")
    if max(len(author), len(comment)) > MAX_TEXT:
        raise ValueError(f"author and comment have at most {MAX_TEXT} characters")
    return Silence(id, found, starts_s, starts_s + length_s, author.strip(), comment.strip())


def kept(silences: Iterable[Silence], now_s: float) -> tuple[Silence, ...]:
    """Without those that ended long ago, at most MAX_SILENCES: the ones that end last."""
    found = sorted((one for one in silences if now_s - one.ends_s < KEPT_S), key=lambda one: -one.ends_s)
    return tuple(found[:MAX_SILENCES])
