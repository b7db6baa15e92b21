"""What goes wrong with single requests, by rule, and what is wrong with a node until told otherwise; as data.

A rule says which requests it is for and what becomes of them:

    node      D0, or a role (P, D, R) with all its nodes; left out: every node
    path      chat or completions; left out: both
    leg       prefill, decode (one with a hand-over) or plain; left out: all
    has       a field of the body: min_tokens; or a number above another: n>1
    nth       of those that fit, counted from 1: 3, 2-5, 4- or every 5; left out: all
    fault     what becomes of them, one of `Trouble`
    status    of fault: status, 400 to 599; default 500
    after     chunks of the stream that go out first; left out: before the headers
    for       of fault: stall: seconds until it goes on; left out: never

The first rule that fits and whose turn it is decides. A request may bring its own in the header `X-Emulator-Fault`,
the fault's name and then `key=value`: `stall after=3 for=2`. Carried out by `emulator.server`; faults on a timeline,
in virtual time, are `faults.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf

HEADER = "X-Emulator-Fault"
MAX_RULES = 1000


class Trouble(StrEnum):
    """What becomes of a request."""

    STATUS = "status"
    """That status, and an error body."""
    RESET = "reset"
    """The connection is reset."""
    STALL = "stall"
    """Silence."""
    ERROR = "error"
    """The engine fails: 500, or an error event where the stream has begun."""
    EMPTY = "empty"
    """200 and nothing."""
    EOS = "eos"
    """The end of the text comes first: one token, no text, finish_reason stop."""
    FINISH_ERROR = "finish_error"
    """No text, finish_reason error: what an engine says that lost the request's KV."""


class Pages(StrEnum):
    """What a node's /metrics is."""

    FRESH = "fresh"
    FROZEN = "frozen"
    """The last page again and again."""
    OLD_NAMES = "old_names"
    """As releases before 0.10 named them."""
    MISSING = "missing"
    """None of the engine's own metrics."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """What becomes of one request. `after` None: before the headers."""

    trouble: Trouble
    status: int = 500
    after: int | None = None
    for_s: float = inf

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"status: an error is 400 to 599, got {self.status}")
        if self.after is not None and (self.after < 1 or self.trouble not in _MIDWAY):
            raise ValueError(
                f"after: {self.trouble.value} comes before the headers; after 1 chunk or more come "
                + ", ".join(each.value for each in _MIDWAY)
            )
        if not self.for_s > 0:
            raise ValueError(f"for: a stall lasts longer than 0 s, got {self.for_s:g}")


_MIDWAY = (Trouble.RESET, Trouble.STALL, Trouble.ERROR)


@dataclass(frozen=True, slots=True)
class Rule:
    """A mishap and whom it befalls."""

    mishap: Mishap
    node: str = ""
    path: str = ""
    leg: str = ""
    field: str = ""
    above: float | None = None
    """The field must be a number above this; None: it must be there and not null."""
    first: int = 1
    last: float = inf
    every: int = 1

    def fits(self, node: str, path: str, body: Mapping[str, object]) -> bool:
        """Whether it is for such requests."""
        if self.node and self.node not in (node, node.rstrip("0123456789")):
            return False
        if self.path and self.path not in path:
            return False
        if self.leg and self.leg != leg_of(body):
            return False
        if not self.field:
            return True
        value = body.get(self.field)
        if self.above is None:
            return value is not None
        return isinstance(value, int | float) and value > self.above

    def turn(self, number: int) -> bool:
        """Whether the `number`th of them is struck, from 1."""
        return self.first <= number <= self.last and (number - self.first) % self.every == 0


@dataclass(frozen=True, slots=True)
class Condition:
    """What is wrong with a node until it is told otherwise. `connections` 0: any number; `keep_alive_s` None: vLLM's"""

    slow: float = 1.0
    pages: Pages = Pages.FRESH
    connections: int = 0
    keep_alive_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.slow < inf:
            raise ValueError(f"slow: a factor above 0, got {self.slow:g}")
        if self.connections < 0:
            raise ValueError(f"connections: a number, 0 for any, got {self.connections}")
        if self.keep_alive_s is not None and not 0 < self.keep_alive_s < inf:
            raise ValueError(f"keep_alive: seconds above 0, got {self.keep_alive_s:g}")


class Rules:
    """A list of rules and how many requests have met each."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self.replace(rules)

    def replace(self, rules: tuple[Rule, ...]) -> None:
        """Other rules, with fresh counts. Raises ValueError where there are too many."""
        if len(rules) > MAX_RULES:
            raise ValueError(f"{len(rules)} rules are more than {MAX_RULES}")
        self.rules = rules
        self.met = [0] * len(rules)
        self.struck = [0] * len(rules)

    def strike(self, node: str, path: str, body: Mapping[str, object]) -> Mishap | None:
        """A request has come: what becomes of it, None for nothing. Every rule that it fits counts it."""
        found = None
        for at, rule in enumerate(self.rules):
            if rule.fits(node, path, body):
                self.met[at] += 1
                if found is None and rule.turn(self.met[at]):
                    self.struck[at] += 1
                    found = rule.mishap
        return found


def leg_of(body: Mapping[str, object]) -> str:
    """prefill, decode or plain: what a request is of a hand-over."""
    params = body.get("kv_transfer_params")
    if not isinstance(params, Mapping):
        return "plain"
    return "prefill" if params.get("do_remote_decode") else "decode" if params.get("do_remote_prefill") else "plain"


RULE_KEYS = ("fault", "node", "path", "leg", "has", "nth", "status", "after", "for")
CONDITION_KEYS = ("slow", "metrics", "connections", "keep_alive")
_NTH = re.compile(r"(?:every ([1-9]\d{0,8}))|([1-9]\d{0,8})(-([1-9]\d{0,8})?)?")
_HAS = re.compile(r"([a-z_]{1,64})(?: *> *(\d{1,9}))?")
_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *(ms|s)?")


def rule(values: Mapping[str, str]) -> Rule:
    """A rule from its keys, all as text. Raises ValueError that begins with the key and says what to write."""
    _known(values, RULE_KEYS)
    path, leg = values.get("path", ""), values.get("leg", "")
    if path not in ("", "chat", "completions"):
        raise ValueError(f"path: {path!r} is neither chat nor completions")
    if leg not in ("", "prefill", "decode", "plain"):
        raise ValueError(f"leg: {leg!r} is none of prefill, decode, plain")
    field, above = "", None
    if "has" in values:
        found = _HAS.fullmatch(values["has"])
        if found is None:
            raise ValueError(f"has: {values['has']!r} is no field; write e.g. min_tokens or n>1")
        field, above = found[1], None if found[2] is None else float(found[2])
    first, last, every = _nth(values["nth"]) if "nth" in values else (1, inf, 1)
    # "completions" is in the path of chats too
    path = {"chat": "/chat/", "completions": "/v1/completions"}.get(path, "")
    return Rule(_mishap(values), values.get("node", ""), path, leg, field, above, first, last, every)


def of_header(text: str) -> Mishap:
    """The header's value: the fault, then key=value. Raises ValueError."""
    name, *pairs = text.split()
    values = {"fault": name, **dict(pair.partition("=")[::2] for pair in pairs)}
    _known(values, ("fault", "status", "after", "for"))
    return _mishap(values)


def condition(values: Mapping[str, str], before: Condition | None = None) -> Condition:
    """A node's condition from its keys, all as text; what is left out stays as it was. Raises ValueError."""
    _known(values, CONDITION_KEYS)
    now = before or Condition()
    pages = values.get("metrics", now.pages.value)
    if pages not in list(Pages):
        raise ValueError(f"metrics: {pages!r} is none of {', '.join(Pages)}")
    return Condition(
        _number("slow", values["slow"]) if "slow" in values else now.slow,
        Pages(pages),
        int(_number("connections", values["connections"])) if "connections" in values else now.connections,
        _seconds("keep_alive", values["keep_alive"]) if "keep_alive" in values else now.keep_alive_s,
    )


def _mishap(values: Mapping[str, str]) -> Mishap:
    name = values.get("fault", "")
    if name not in list(Trouble):
        raise ValueError(f"fault: {name!r} is none of {', '.join(Trouble)}")
    after = int(_number("after", values["after"])) if "after" in values else None
    status = int(_number("status", values["status"])) if "status" in values else 500
    text = values.get("for", "")
    return Mishap(Trouble(name), status, after, _seconds("for", text) if text else inf)


def _nth(text: str) -> tuple[int, float, int]:
    found = _NTH.fullmatch(text)
    if found is None:
        raise ValueError(f"nth: {text!r} is no number of requests; write 3, 2-5, 4- or every 5")
    if found[1] is not None:
        return int(found[1]), inf, int(found[1])
    first = int(found[2])
    last = first if found[3] is None else inf if found[4] is None else int(found[4])
    if last < first:
        raise ValueError(f"nth: {text!r} ends before it begins")
    return first, last, 1


def _known(values: Mapping[str, str], keys: tuple[str, ...]) -> None:
    for name in values:
        if name not in keys:
            raise ValueError(f"{name}: unknown key; there are {', '.join(keys)}")


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key}: {text!r} is no number") from None


def _seconds(key: str, text: str) -> float:
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise ValueError(f"{key}: {text!r} is no time; write e.g. 2s or 500ms")
    return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)
