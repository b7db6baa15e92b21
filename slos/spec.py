"""The file that declares SLOs (YAML, version 1), read into a `Declaration` or into all of its problems at once.

    version: 1
    service: chat                        # optional
    slos:
      - name: later-ttft                 # a DNS-1123 label, unique in the file
        objective: p99(ttft) <= 2s       # or signal: ttft, percent: 99, max: 2s
        match: {model: "llama-*", turn: ">=2", streaming: true}     # optional, as is each key in it
      - name: answers
        signal: success                  # or objective: success >= 99.9%
        percent: 99.9

`match.model` is a glob or a list of them, `match.turn` one of "1", "2..5", ">=2". Every unit is written. The
rules and their codes are listed in `slos/problem.py`, the small languages of the values in `slos/phrases.py`.
"""

import re

import yaml

from . import phrases
from .document import compose
from .nodes import Spot, fields, items, scalar
from .objective import STREAMED, Match, Signal, Slo
from .phrases import Promise
from .policy import Declaration
from .problem import Problem, Problems, SpecError, quoted

__all__ = ["Problem", "SpecError", "load_slos", "read_slos"]

VERSION = 1

_FILE_KEYS = ("version", "service", "slos")
_SLO_KEYS = ("name", "objective", "signal", "percent", "max", "match")
_LONG_KEYS = ("signal", "percent", "max")
_MATCH_KEYS = ("model", "turn", "streaming")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def load_slos(text: str, source: str) -> Declaration:
    """Reads a whole file; `source` is its name in problems. Raises SpecError with every problem found."""
    problems = Problems(source)
    root = compose(text, problems)
    top = fields(root, _FILE_KEYS) if root else None
    service: str | None = None
    slos: tuple[Slo, ...] = ()
    if root is not None and top is not None:
        _version(root, top)
        if "service" in top:
            service = _label(top["service"])
        if _has(root, top, "slos", "list at least one objective under slos:"):
            slos = read_slos(top["slos"])
    problems.raise_any()
    return Declaration(slos, service, source=source)


def _has(spot: Spot, found: dict[str, Spot], key: str, fix: str) -> bool:
    if key not in found:
        spot.complain("E103", f"{key} is missing", fix)
    return key in found


def _version(root: Spot, top: dict[str, Spot]) -> None:
    if not _has(root, top, "version", f"write version: {VERSION} on the first line"):
        return
    text = scalar(top["version"], str(VERSION))
    if text is not None and text != str(VERSION):
        top["version"].complain("E112", f"{quoted(text)} is not known", f"write {VERSION}")


def read_slos(spot: Spot) -> tuple[Slo, ...]:
    """The list of objectives at `spot`, in this file or inside another one; problems go to the spot's."""
    slos: list[Slo] = []
    named: dict[str, Spot] = {}
    for item in items(spot) or ():
        found = fields(item, _SLO_KEYS)
        if found is None:
            continue
        name = None
        if _has(item, found, "name", "write name: later-ttft or the like"):
            name = _label(found["name"])
        if name is not None and named.setdefault(name, item) is not item:
            message = f"{quoted(name)} is already the name on line {named[name].line}"
            found["name"].complain("E106", message, "give each objective its own name")
        promise = _promise(item, found)
        match = _match(found["match"]) if "match" in found else Match()
        if promise is None or match is None:
            continue
        if promise.signal in STREAMED and match.streaming is False:
            message = f"{promise.signal} of turns that do not stream is never known"
            found["match"].complain("E209", message, "use e2e, or streaming: true")
        if name is not None:
            slos.append(Slo(name, promise.signal, promise.objective, promise.threshold_s, match, item.line))
    return tuple(slos)


def _label(spot: Spot) -> str | None:
    text = scalar(spot, "a name such as later-ttft")
    if text is None or _LABEL.fullmatch(text):
        return text
    near = re.sub(r"[^a-z0-9]+", "-", text.lower()[:63]).strip("-")
    fix = f"write {near or 'later-ttft'}"
    spot.complain("E105", f"{quoted(text)} is not of a-z, 0-9 and inner dashes, at most 63", fix)
    return None


def _promise(item: Spot, found: dict[str, Spot]) -> Promise | None:
    long_form = [key for key in _LONG_KEYS if key in found]
    if "objective" in found:
        spot = found["objective"]
        if long_form:
            spot.complain("E210", f"stands beside {', '.join(long_form)}", "keep one form")
        text = scalar(spot, "p99(ttft) <= 2s")
        return None if text is None else phrases.objective(text, spot.complain)
    if not long_form:
        _has(item, found, "objective", "write objective: p99(ttft) <= 2s or the like")
        return None
    return _long_promise(item, found)


def _long_promise(item: Spot, found: dict[str, Spot]) -> Promise | None:
    signal: Signal | None = None
    if _has(item, found, "signal", f"write signal: one of {', '.join(Signal)}"):
        text = scalar(found["signal"], "ttft")
        signal = None if text is None else phrases.signal_named(text, found["signal"].complain)
    percent: float | None = None
    if _has(item, found, "percent", "write percent: 99 or the like"):
        text = scalar(found["percent"], "99")
        # Without a known signal the wide range of success is the one that cannot complain wrongly.
        complain = found["percent"].complain
        percent = None if text is None else phrases.share(text, signal or Signal.SUCCESS, complain)
    if signal is Signal.SUCCESS:
        if "max" in found:
            found["max"].complain("E210", "success has no limit", "remove it")
        return None if percent is None else Promise(signal, percent, None)
    if "max" not in found:
        if signal is not None:
            _has(item, found, "max", "write max: 500ms or the like")
        return None
    text = scalar(found["max"], "500ms")
    limit_s = None if text is None else phrases.duration_s(text, found["max"].complain)
    return None if signal is None or percent is None or limit_s is None else Promise(signal, percent, limit_s)


def _match(spot: Spot) -> Match | None:
    found = fields(spot, _MATCH_KEYS)
    if found is None:
        return None
    models: tuple[str, ...] | None = ("*",)
    if "model" in found:
        models = _models(found["model"])
    span: tuple[int, int | None] | None = (1, None)
    if "turn" in found:
        text = scalar(found["turn"], '">=2"')
        span = None if text is None else phrases.turns(text, found["turn"].complain)
    streaming: bool | None = None
    if "streaming" in found:
        text = scalar(found["streaming"], "true or false")
        streaming = _BOOLEANS.get(text or "")
        if text is not None and streaming is None:
            found["streaming"].complain("E104", f"{quoted(text)} is not a boolean", "write true or false")
    return None if models is None or span is None else Match(models, span[0], span[1], streaming)


def _models(spot: Spot) -> tuple[str, ...] | None:
    spots = items(spot) if isinstance(spot.node, yaml.SequenceNode) else [spot]
    globs = [scalar(item, 'a glob such as "llama-*"') for item in spots or ()]
    return tuple(glob for glob in globs if glob is not None) or None
