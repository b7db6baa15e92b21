"""The file that declares SLOs (YAML, version 1), read into a `Declaration` or into all of its problems at once.

    version: 1
    service: chat                        # optional, as is all but version and slos
    labels: {team: assistants}
    traffic: {rps: 2}                    # what check and explain reckon with
    defaults: {slice: 5m, budget: {over: 28d, method: requests}, min_samples: 100}
    slos:
      - name: later-ttft                 # a DNS-1123 label, unique in the file
        objective: p99(ttft) <= 2s       # or signal: ttft, percent: 99, max: 2s
        match: {model: "llama-*", turn: ">=2", streaming: true, class: gold, tenant: [assistants], asked: false}
      - name: answers
        objective: success >= 99.9%
      - name: good-turns                 # all conditions on the same turn
        all_of: ["ttft <= 500ms", "tpot <= 40ms", success]
        percent: 97
        budget: {method: slices, percent: 99}
      - preset: mlperf/llama2-70b-interactive
    alerts:                              # `alerts_spec.py`

The same keys but `version` may stand in trimtab.yaml. Every unit is written. The rules and their codes are listed in
`slos/problem.py`, the keys in `slos/schema.py`, the small languages of the values in `slos/phrases.py`.
"""

import math
import re
from dataclasses import replace

from . import advice, phrases, schema
from .advice import Found
from .alerts_spec import read_alerts
from .allowance import REQUESTS_28D, SLICES_S, STEP_S, Budget, Method
from .document import compose
from .nodes import Spot, boolean, choice, fields, items, names, number, pairs, scalar, whole
from .objective import ASKABLE, STREAMED, Condition, Match, Signal, Slo
from .phrases import Promise
from .policy import DAY_S, Declaration
from .presets import PERCENT, PRESETS
from .problem import Problem, Problems, SpecError, did_you_mean, quoted

__all__ = [
    "Problem",
    "SpecError",
    "check_slos",
    "load_slos",
    "read_budget",
    "read_declaration",
    "read_labels",
    "read_name",
    "read_objective",
    "read_slos",
]

VERSION = 1
MAX_OVER_S = 90 * DAY_S
MAX_SLOS = 100
MAX_LABELS = 16
RESERVED_LABELS = frozenset(
    {"alertname", "burn_factor", "family", "le", "long_window", "service", "severity", "short_window", "slo"}
)

_LONG_KEYS = ("signal", "percent", "max", "all_of")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def load_slos(text: str, source: str) -> Declaration:
    """Reads a whole file; `source` is its name in problems. Raises SpecError with every mistake found."""
    problems = Problems(source)
    declaration = _read(text, problems, None)
    problems.raise_any()
    assert declaration is not None
    return declaration


def check_slos(text: str, source: str, rps: float | None = None) -> tuple[Declaration | None, tuple[Problem, ...]]:
    """The same with the advice, in the order of lines; where there are mistakes, None and only these. `rps`: expected
    turns a second, in the place of the file's own."""
    problems = Problems(source)
    declaration = _read(text, problems, rps)
    found = sorted(problems, key=lambda problem: (problem.line, problem.column))
    mistakes = tuple(each for each in found if not each.advice)
    return (None, mistakes) if mistakes else (declaration, tuple(found))


def _read(text: str, problems: Problems, rps: float | None) -> Declaration | None:
    root = compose(text, problems)
    top = fields(root, tuple(schema.FILE)) if root else None
    if root is None or top is None:
        return None
    _version(root, top)
    _has(root, top, "slos", "list at least one objective under slos:")
    return read_declaration(top, problems.source, rps)


def read_declaration(top: dict[str, Spot], source: str, rps: float | None = None) -> Declaration:
    """What the keys of `schema.DECLARATION` in `top` declare; problems go to the spots'."""
    service = read_name(top["service"]) if "service" in top else None
    labels = read_labels(top["labels"]) if "labels" in top else ()
    usual = _defaults(top["defaults"]) if "defaults" in top else REQUESTS_28D
    expected = _traffic(top["traffic"]) if "traffic" in top else None
    found = _slos(top["slos"], usual) if "slos" in top else []
    slos = tuple(each.slo for each in found)
    at = top.get("alerts") or top.get("slos")
    alerts = read_alerts(top.get("alerts"), slos)
    if at is not None and found:
        advice.advise(found, alerts, at, rps if rps is not None else expected)
    return Declaration(slos, service, labels, alerts, source, expected)


def read_slos(spot: Spot) -> tuple[Slo, ...]:
    """The list of objectives at `spot`, in this file or inside another one; problems go to the spot's."""
    return tuple(each.slo for each in _slos(spot, REQUESTS_28D))


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


def read_name(spot: Spot) -> str | None:
    """A DNS-1123 label."""
    text = scalar(spot, "a name such as later-ttft")
    if text is None or _LABEL.fullmatch(text):
        return text
    near = re.sub(r"[^a-z0-9]+", "-", text.lower()[:63]).strip("-")
    fix = f"write {near or 'later-ttft'}"
    spot.complain("E105", f"{quoted(text)} is not of a-z, 0-9 and inner dashes, at most 63", fix)
    return None


def read_labels(spot: Spot) -> tuple[tuple[str, str], ...]:
    """Names and values of labels."""
    found = pairs(spot, "team", "assistants")
    if len(found) > MAX_LABELS:
        spot.complain("E109", f"{len(found)} labels are more than {MAX_LABELS}", "keep those that alerts are routed by")
    for name, (at, _) in found.items():
        if name in RESERVED_LABELS or name.startswith("__"):
            at.complain(
                "E111", "is a label that Trimtab or Prometheus sets itself", f"write {name.strip('_')}_name or the like"
            )
        elif not re.fullmatch(schema.LABEL_NAME, name) or len(name) > 63:
            near = re.sub(r"[^a-zA-Z0-9_]+", "_", name[:63]).strip("_") or "team"
            at.complain("E111", "is no label name", f"write {near}" if not near[0].isdigit() else f"write _{near}")
    return tuple((name, text) for name, (_, text) in found.items() if text is not None)


def _traffic(spot: Spot) -> float | None:
    found = fields(spot, tuple(schema.TRAFFIC)) or {}
    if "rps" not in found:
        return None
    return number(found["rps"], 0.0, 1e6, "E204", "2, the turns a second that you expect")


# -- budgets ---------------------------------------------------------------------------------------------------------


def _defaults(spot: Spot) -> Budget:
    found = fields(spot, tuple(schema.DEFAULTS))
    if found is None:
        return REQUESTS_28D
    inner: dict[str, Spot] = {}
    if "budget" in found:
        inner = fields(found["budget"], ("over", "method", "percent")) or {}
    rest: dict[str, Spot] = {key: found[key] for key in ("slice", "min_samples") if key in found}
    return read_budget(spot, {**inner, **rest}, REQUESTS_28D)


def read_budget(spot: Spot, found: dict[str, Spot], usual: Budget) -> Budget:
    """What differs from `usual`, by the keys of `schema.BUDGET`."""
    budget = usual
    if "over" in found:
        over_s = _span(found["over"], DAY_S, MAX_OVER_S, "28d")
        budget = budget if over_s is None else replace(budget, over_s=over_s)
    if "slice" in found:
        slice_s = _span(found["slice"], STEP_S, DAY_S, "5m")
        if slice_s is not None and slice_s not in SLICES_S:
            found["slice"].complain("E205", *_slice_problem(slice_s))
        elif slice_s is not None:
            budget = replace(budget, slice_s=slice_s)
    if "method" in found:
        method = choice(found["method"], tuple(each.value for each in Method))
        budget = budget if method is None else replace(budget, method=Method(method))
    if "percent" in found:
        text = scalar(found["percent"], "99")
        good = None if text is None else phrases.share(text, Signal.SUCCESS, found["percent"].complain)
        if budget.method is Method.REQUESTS:
            found["percent"].complain(
                "E210", "is of slices, and the budget counts requests", "remove it, or write method: slices"
            )
        elif good is not None:
            budget = replace(budget, good_slices=good)
    if budget.method is Method.REQUESTS:
        budget = replace(budget, good_slices=REQUESTS_28D.good_slices)
    if "min_samples" in found:
        least = whole(found["min_samples"], 1, 1_000_000, "100")
        budget = budget if least is None else replace(budget, min_samples=least)
    if budget.over_s % budget.slice_s and ("over" in found or "slice" in found):
        at = found.get("over") or found["slice"]
        at.complain(
            "E205",
            f"{phrases.span(budget.over_s)} is no multiple of the slice",
            f"write a multiple of {phrases.span(budget.slice_s)}, such as 28d",
        )
        return usual
    return budget


def _span(spot: Spot, least_s: float, most_s: float, example: str) -> float | None:
    text = scalar(spot, example)
    return None if text is None else phrases.span_s(text, least_s, most_s, spot.complain)


def _slice_problem(slice_s: float) -> tuple[str, str]:
    near = min(SLICES_S, key=lambda each: abs(math.log(each / slice_s)))
    return f"{phrases.span(slice_s)} does not divide a day in steps of 30 s", f"write {phrases.span(near)}"


# -- objectives ------------------------------------------------------------------------------------------------------


def _slos(spot: Spot, usual: Budget) -> list[Found]:
    slos: list[Found] = []
    named: dict[str, Spot] = {}
    listed = items(spot) or ()
    if len(listed) > MAX_SLOS:
        spot.complain("E109", f"{len(listed)} objectives are more than {MAX_SLOS}", "split the service")
        return slos
    for item in listed:
        found = fields(item, tuple(schema.SLO))
        if found is not None:
            slos += read_objective(item, found, usual, named)
    return slos


def read_objective(item: Spot, found: dict[str, Spot], usual: Budget, named: dict[str, Spot]) -> list[Found]:
    """The SLOs of one item: one, or the two of a preset. `named`: the names that are taken, and where."""
    preset = _preset(found) if "preset" in found else None
    name: str | None = None
    if "name" in found or "preset" not in found:
        if _has(item, found, "name", "write name: later-ttft or the like"):
            name = read_name(found["name"])
    elif preset is not None:
        name = re.sub(r"[^a-z0-9]+", "-", preset)
    budget = usual
    if "budget" in found:
        inner = fields(found["budget"], tuple(schema.BUDGET))
        budget = usual if inner is None else read_budget(found["budget"], inner, usual)
    match = _match(found["match"]) if "match" in found else Match()
    description = (scalar(found["description"], "what it is for") or "") if "description" in found else ""
    labels = read_labels(found["labels"]) if "labels" in found else ()
    slos: list[Found] = []
    for suffix, promise, conditions, at in _promises(item, found, preset, match):
        whole_name = None if name is None else f"{name}{suffix}"
        where = found.get("name", item)
        if whole_name is not None and len(whole_name) > 63:
            where.complain("E105", f"{quoted(whole_name)} is longer than 63", "write a shorter name")
            continue
        if whole_name is not None and named.setdefault(whole_name, item) is not item:
            message = f"{quoted(whole_name)} is already the name on line {named[whole_name].line}"
            where.complain("E106", message, "give each objective its own name")
        if promise is None or match is None:
            continue
        covered = _covered(item, found, promise, conditions, match)
        if covered is None or whole_name is None:
            continue
        slo = Slo(
            whole_name,
            promise.signal,
            promise.objective,
            promise.threshold_s,
            covered,
            item.line,
            budget,
            conditions,
            description,
            labels,
        )
        slos.append(Found(slo, at))
    return slos


def _promises(
    item: Spot, found: dict[str, Spot], preset: str | None, match: Match | None
) -> list[tuple[str, Promise | None, tuple[Condition, ...], Spot]]:
    """(suffix of the name, promise, conditions, where it is written) of one item of the list."""
    if "preset" in found:
        beside = [key for key in ("objective", *_LONG_KEYS) if key in found]
        if beside:
            found["preset"].complain("E210", f"stands beside {', '.join(beside)}", "keep one form")
        if preset is None:
            return []
        limits, share = PRESETS[preset], round(PERCENT / 100, 12)
        at = found["preset"]
        return [
            ("-ttft", Promise(Signal.TTFT, share, limits.ttft_ms / 1000), (), at),
            ("-tpot", Promise(Signal.TPOT, share, limits.tpot_ms / 1000), (), at),
        ]
    promise, conditions = _promise(item, found, match is not None and match.asked is True)
    at = found.get("max") or found.get("all_of") or found.get("objective") or item
    return [("", promise, conditions, at)]


def _preset(found: dict[str, Spot]) -> str | None:
    spot = found["preset"]
    text = scalar(spot, next(iter(PRESETS)))
    if text is None or text in PRESETS:
        return text
    spot.complain("E211", f"{quoted(text)} is no preset", did_you_mean(text, list(PRESETS)))
    return None


def _promise(item: Spot, found: dict[str, Spot], asked: bool) -> tuple[Promise | None, tuple[Condition, ...]]:
    long_form = [key for key in _LONG_KEYS if key in found]
    if "objective" in found:
        spot = found["objective"]
        if long_form:
            spot.complain("E210", f"stands beside {', '.join(long_form)}", "keep one form")
        text = scalar(spot, "p99(ttft) <= 2s")
        return (None if text is None else phrases.objective(text, spot.complain)), ()
    if not long_form:
        _has(item, found, "objective", "write objective: p99(ttft) <= 2s or the like")
        return None, ()
    if "all_of" in found:
        return _goodput(item, found)
    return _long_promise(item, found, asked), ()


def _goodput(item: Spot, found: dict[str, Spot]) -> tuple[Promise | None, tuple[Condition, ...]]:
    for key in ("signal", "max"):
        if key in found and not (key == "signal" and scalar(found[key], Signal.GOODPUT) in (Signal.GOODPUT, None)):
            found[key].complain("E210", "stands beside all_of", "remove it")
    percent: float | None = None
    if _has(item, found, "percent", "write percent: 97 or the like"):
        percent = _percent(found["percent"], Signal.GOODPUT)
    conditions: list[Condition] = []
    seen: set[Signal] = set()
    complete = True
    for spot in items(found["all_of"]) or ():
        text = scalar(spot, "ttft <= 500ms, or success")
        each = None if text is None else phrases.condition(text, spot.complain)
        if each is None:
            complete = False
        elif each.signal in seen:
            spot.complain("E210", f"is the second condition on {each.signal}", "keep the tighter one")
        else:
            seen.add(each.signal)
            conditions.append(each)
    if percent is None or not complete or not conditions:
        return None, ()
    return Promise(Signal.GOODPUT, percent, None), tuple(conditions)


def _percent(spot: Spot, signal: Signal | None) -> float | None:
    text = scalar(spot, "99")
    # Without a known signal the wide range of success is the one that cannot complain wrongly.
    return None if text is None else phrases.share(text, signal or Signal.SUCCESS, spot.complain)


def _long_promise(item: Spot, found: dict[str, Spot], asked: bool) -> Promise | None:
    signal: Signal | None = None
    if _has(item, found, "signal", f"write signal: one of {', '.join(Signal)}"):
        text = scalar(found["signal"], "ttft")
        signal = None if text is None else phrases.signal_named(text, found["signal"].complain)
    percent: float | None = None
    if _has(item, found, "percent", "write percent: 99 or the like"):
        percent = _percent(found["percent"], signal)
    if signal is Signal.GOODPUT:
        _has(item, found, "all_of", 'write all_of: ["ttft <= 500ms", success]')
        return None
    if signal is Signal.SUCCESS:
        if "max" in found:
            found["max"].complain("E210", "success has no limit", "remove it")
        return None if percent is None else Promise(signal, percent, None)
    if "max" not in found:
        if signal in ASKABLE and asked:
            return None if percent is None else Promise(signal, percent, None, True)
        if signal is not None:
            _has(item, found, "max", "write max: 500ms or the like")
        return None
    text = scalar(found["max"], "500ms")
    bound = None if text is None else phrases.limit(text, signal, found["max"].complain)
    return None if signal is None or percent is None or bound is None else Promise(signal, percent, *bound)


def _covered(
    item: Spot, found: dict[str, Spot], promise: Promise, conditions: tuple[Condition, ...], match: Match
) -> Match | None:
    """The match as it is meant, where the promise is about turns that set their own deadlines."""
    needed = conditions or (Condition(promise.signal, promise.threshold_s),)
    streamed = [each.signal for each in needed if each.signal in STREAMED]
    if streamed and match.streaming is False:
        message = f"{streamed[0]} of turns that do not stream is never known"
        found["match"].complain("E209", message, "use e2e, or streaming: true")
        return None
    askable = [each for each in needed if each.signal in ASKABLE]
    own = [each for each in askable if each.threshold_s is None]
    if own and match.asked is False:
        found["match"].complain("E210", "asked: false beside a deadline that is asked", "remove one of them")
        return None
    if own or match.asked is True:
        if len(own) < len(askable):
            at = found.get("max") or found.get("all_of") or found.get("objective") or item
            example = "ttft <= asked" if conditions else "max: asked" if "max" in found else "p99(ttft) <= asked"
            message = "turns that ask for a deadline are judged by it, not by another"
            at.complain("E210", message, f"write {example}, or asked: false")
            return None
        return replace(match, asked=True)
    return match


def _match(spot: Spot) -> Match | None:
    found = fields(spot, tuple(schema.MATCH))
    if found is None:
        return None
    models: tuple[str, ...] | None = ("*",)
    if "model" in found:
        models = names(found["model"], 'a glob such as "llama-*"') or None
    span: tuple[int, int | None] | None = (1, None)
    if "turn" in found:
        text = scalar(found["turn"], '">=2"')
        span = None if text is None else phrases.turns(text, found["turn"].complain)
    streaming = boolean(found["streaming"]) if "streaming" in found else None
    asked = boolean(found["asked"]) if "asked" in found else None
    classes = _words(found["class"], "gold") if "class" in found else ()
    tenants = _words(found["tenant"], "assistants") if "tenant" in found else ()
    if models is None or span is None:
        return None
    return Match(models, span[0], span[1], streaming, classes, tenants, asked)


def _words(spot: Spot, example: str) -> tuple[str, ...]:
    given = names(spot, f"a name such as {example}")
    for text in given:
        if not _WORD.fullmatch(text):
            spot.complain("E105", f"{quoted(text)} is not of letters, digits, . _ and -", f"write {example}")
    return given
