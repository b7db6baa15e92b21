"""OpenSLO v1 documents, read into a `Declaration` or into all of its problems at once.

Refused by name: other versions; calendar windows, and windows of months, quarters and years; RatioTimeslices; several
objectives, composite ones and those with op or value; raw and threshold metrics; queries of other systems and
references to data sources; alert policies, conditions and targets. An alert condition there has one window and an `op`
whose direction its own examples leave open, so none is guessed: write `alerts:` in the SLO file.

Left out, with advice: display names and annotations of others.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import yaml

from .. import phrases
from ..alerts_spec import read_alerts
from ..allowance import REQUESTS_28D, Budget
from ..document import compose, compose_all
from ..nodes import Spot, choice, fields, items, number, own_fields, scalar
from ..objective import Slo
from ..policy import AlertPolicy, Declaration
from ..problem import Problem, Problems, quoted
from ..spec import read_budget, read_labels, read_name, read_objective
from .writing import API_VERSION, PREFIX, SOURCE_TYPE

KINDS = ("SLO", "SLI", "Service", "DataSource", "AlertPolicy", "AlertCondition", "AlertNotificationTarget")
_HEAD = ("apiVersion", "kind", "metadata", "spec")
_METADATA = ("name", "displayName", "labels", "annotations")
_SLO = (
    *("description", "service", "indicator", "indicatorRef", "timeWindow", "budgetingMethod", "objectives"),
    "alertPolicies",
)
_OBJECTIVE = (
    *("displayName", "target", "targetPercent", "timeSliceTarget", "timeSliceWindow"),
    *("op", "value", "compositeWeight", "indicator", "indicatorRef"),
)
_METRICS = ("ratioMetric", "thresholdMetric", "description")
_RATIO = ("good", "bad", "total", "counter", "raw", "rawType")
_SOURCE = ("type", "spec", "metricSourceRef")
_PROMISE = ("signal", "max", "all_of", "match")
_NOTES = ("alerts", "rps", "unnamed", "labels", "over", "slice", "min-samples")
T = TypeVar("T")
_ALERTS = "write alerts: in the SLO file that comes out"


def read_openslo(text: str, source: str) -> tuple[Declaration | None, tuple[Problem, ...]]:
    """The declaration, None where something was refused, and all problems and advice in the order of lines."""
    problems = Problems(source)
    reader = _Reader()
    for root in compose_all(text, problems):
        reader.document(root)
    declaration = reader.declaration(source, problems)
    found = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return (None if any(not each.advice for each in found) else declaration), found


class _Reader:
    """What the documents say so far; an SLO may refer to an SLI that comes after it."""

    def __init__(self) -> None:
        self._slos: list[tuple[Spot, dict[str, Spot], dict[str, Spot]]] = []
        self._indicators: dict[str, Spot] = {}
        self._service: Spot | None = None
        self._service_name: str | None = None
        self._unnamed = False
        self._labels: tuple[tuple[str, str], ...] = ()
        self._alerts: Spot | None = None
        self._rps: float | None = None

    def document(self, root: Spot) -> None:
        """Take one."""
        head = fields(root, _HEAD)
        if head is None:
            return
        for key in _HEAD:
            if key not in head:
                root.complain(
                    "E103", f"{key} is missing", f"write {key}: {API_VERSION if key == 'apiVersion' else '...'}"
                )
        if not all(key in head for key in _HEAD):
            return
        version = scalar(head["apiVersion"], API_VERSION)
        if version is not None and version != API_VERSION:
            head["apiVersion"].complain("E112", f"{quoted(version)} is not read", f"write {API_VERSION}")
            return
        kind = choice(head["kind"], KINDS)
        metadata = fields(head["metadata"], _METADATA) or {}
        if "displayName" in metadata:
            _left_out(metadata["displayName"])
        if kind == "SLO":
            spec = fields(head["spec"], _SLO)
            if spec is not None:
                self._slos.append((root, metadata, spec))
        elif kind == "SLI":
            name = scalar(metadata["name"], "ttft") if "name" in metadata else None
            if name is not None:
                self._indicators[name] = head["spec"]
        elif kind == "Service":
            self._serve(head["kind"], metadata)
        elif kind is not None:
            fix = "remove it: Trimtab measures turns itself" if kind == "DataSource" else _ALERTS
            head["kind"].complain("E601", f"a {kind} cannot be imported", fix)

    def declaration(self, source: str, problems: Problems) -> Declaration | None:
        """All of it."""
        slos: list[Slo] = []
        named: dict[str, Spot] = {}
        for root, metadata, spec in self._slos:
            slos += self._slo(root, metadata, spec, named)
        if not self._slos and not any(True for _ in problems):
            problems.add(1, 1, "E103", "the file: no document of kind SLO", "export one with trimtab slo export")
        policy = AlertPolicy() if self._alerts is None else _noted_alerts(self._alerts, tuple(slos))
        service = None if self._unnamed else self._service_name
        return Declaration(tuple(slos), service, self._labels, policy, source, self._rps)

    def _serve(self, kind: Spot, metadata: dict[str, Spot]) -> None:
        if self._service is not None:
            kind.complain("E601", "a second Service cannot be imported", "split the file by service")
            return
        self._service = kind
        if "name" in metadata:
            self._name_service(metadata["name"])
        notes = _notes(metadata)
        self._labels = _labels(metadata, notes)
        self._unnamed = "unnamed" in notes
        if "rps" in notes:
            self._rps = number(notes["rps"], 0.0, 1e6, "E204", "2")
        if "alerts" in notes:
            self._alerts = notes["alerts"]

    def _name_service(self, spot: Spot) -> None:
        name = read_name(spot)
        if name is None:
            return
        if self._service_name is not None and self._service_name != name:
            message = f"{quoted(name)} is another service than {quoted(self._service_name)}"
            spot.complain("E601", message, "split the file by service")
        self._service_name = name

    def _slo(self, root: Spot, metadata: dict[str, Spot], spec: dict[str, Spot], named: dict[str, Spot]) -> list[Slo]:
        if "service" in spec:
            self._name_service(spec["service"])
        if "alertPolicies" in spec:
            listed = getattr(spec["alertPolicies"].node, "value", None)
            if listed:
                spec["alertPolicies"].complain("E601", "alert policies cannot be imported", _ALERTS)
        notes = _notes(metadata)
        item: dict[str, Spot] = {key: metadata[key] for key in ("name",) if key in metadata}
        if "description" in spec:
            item["description"] = spec["description"]
        budget = self._budget(root, spec, notes, item)
        promise = self._promise(root, spec)
        if promise is None or budget is None:
            return []
        item |= promise
        found = read_objective(root, item, budget, named)
        labels = _labels(metadata, notes)
        return [replace(each.slo, labels=labels) for each in found]

    def _budget(
        self, root: Spot, spec: dict[str, Spot], notes: dict[str, Spot], item: dict[str, Spot]
    ) -> Budget | None:
        """Puts the percent into `item`."""
        found = {
            key: notes[note] for key, note in (("slice", "slice"), ("min_samples", "min-samples")) if note in notes
        }
        window = self._window(root, spec)
        if window is not None:
            found["over"] = notes.get("over", window)
        method = None
        for key, example in (("budgetingMethod", "Occurrences"), ("objectives", "[{target: 0.99}]")):
            if key not in spec:
                root.complain("E103", f"spec.{key} is missing", f"write {key}: {example}")
        if "budgetingMethod" in spec:
            text = scalar(spec["budgetingMethod"], "Occurrences")
            if text == "RatioTimeslices":
                fix = "write Timeslices, or Occurrences"
                spec["budgetingMethod"].complain("E601", "RatioTimeslices cannot be imported", fix)
            else:
                method = choice(spec["budgetingMethod"], ("Occurrences", "Timeslices"))
        objective = self._objective(spec["objectives"]) if "objectives" in spec else None
        if objective is None or method is None or window is None:
            return None
        if method == "Timeslices":
            for key, example in (("timeSliceTarget", "0.99"), ("timeSliceWindow", "5m")):
                if key not in objective:
                    spec["objectives"].complain("E103", f"{key} is missing", f"write {key}: {example}")
                    return None
            item["percent"] = _as_percent(objective["timeSliceTarget"])
            found["method"] = _made(spec["budgetingMethod"], "slices")
            found["slice"] = _minutes(objective["timeSliceWindow"])
            found["percent"] = objective["target"]
        else:
            for key in ("timeSliceTarget", "timeSliceWindow"):
                if key in objective:
                    objective[key].complain(
                        "E210", "is of Timeslices", "remove it, or write budgetingMethod: Timeslices"
                    )
            item["percent"] = objective["target"]
        return read_budget(root, found, REQUESTS_28D)

    def _window(self, root: Spot, spec: dict[str, Spot]) -> Spot | None:
        """Where the duration is."""
        if "timeWindow" not in spec:
            root.complain("E103", "spec.timeWindow is missing", "write timeWindow: [{duration: 28d, isRolling: true}]")
            return None
        listed = items(spec["timeWindow"]) or []
        if len(listed) != 1:
            if listed:
                spec["timeWindow"].complain("E601", "several windows cannot be imported", "keep one")
            return None
        found = fields(listed[0], ("duration", "isRolling", "calendar"))
        if found is None:
            return None
        rolling = scalar(found["isRolling"], "true") if "isRolling" in found else None
        if "calendar" in found or rolling not in ("true", "True", "TRUE"):
            at = found.get("calendar") or found.get("isRolling") or listed[0]
            at.complain("E601", "a calendar window cannot be imported", "write isRolling: true and duration: 28d")
            return None
        if "duration" not in found:
            listed[0].complain("E103", "duration is missing", "write duration: 28d")
            return None
        text = scalar(found["duration"], "28d")
        if text is not None and text[-1:] in ("M", "Q", "Y"):
            message = f"{quoted(text)} has no fixed length and cannot be imported"
            found["duration"].complain("E601", message, "write days, such as 28d")
            return None
        return None if text is None else found["duration"]

    def _objective(self, spot: Spot) -> dict[str, Spot] | None:
        """The one objective, its target as a percent."""
        listed = items(spot)
        if not listed:
            return None
        if len(listed) > 1:
            listed[1].complain("E601", "a second objective cannot be imported", "write an SLO for each")
            return None
        found = fields(listed[0], _OBJECTIVE)
        if found is None:
            return None
        for key in ("op", "value"):
            if key in found:
                found[key].complain("E601", "is of threshold metrics, which cannot be imported", "remove it")
        for key in ("compositeWeight", "indicator", "indicatorRef"):
            if key in found:
                found[key].complain("E601", "composite objectives cannot be imported", "write an SLO for each")
        if "displayName" in found:
            _left_out(found["displayName"])
        if "target" in found and "targetPercent" in found:
            found["targetPercent"].complain("E210", "stands beside target", "keep one of them")
        if "targetPercent" in found:
            return {**found, "target": found["targetPercent"]}
        if "target" not in found:
            listed[0].complain("E103", "target is missing", "write target: 0.99")
            return None
        return {**found, "target": _as_percent(found["target"])}

    def _promise(self, root: Spot, spec: dict[str, Spot]) -> dict[str, Spot] | None:
        """signal, max, all_of and match of the indicator."""
        metrics = self._indicator(root, spec)
        found = None if metrics is None else fields(metrics, _METRICS)
        if metrics is None or found is None:
            return None
        fix = "write ratioMetric: {counter: true, good: ..., total: ...} over a source of type Trimtab"
        if "thresholdMetric" in found:
            found["thresholdMetric"].complain("E601", "a threshold metric cannot be imported", fix)
            return None
        if "ratioMetric" not in found:
            metrics.complain("E103", "ratioMetric is missing", fix)
            return None
        ratio = fields(found["ratioMetric"], _RATIO)
        if ratio is None:
            return None
        refused = [key for key in ("raw", "rawType", "bad") if key in ratio]
        for key in refused:
            ratio[key].complain("E601", f"a ratio by {key} cannot be imported", fix)
        for part in ("good", "total"):
            if part not in ratio and not refused:
                found["ratioMetric"].complain("E103", f"{part} is missing", fix)
        if refused or "good" not in ratio or "total" not in ratio:
            return None
        good, total = self._source(ratio["good"], _PROMISE), self._source(ratio["total"], ("match",))
        if good is None or total is None:
            return None
        if _plain(good.get("match")) != _plain(total.get("match")):
            message = "its match is not that of good: an SLO is about one set of turns"
            total.get("match", ratio["total"]).complain("E601", message, "write the same match in both")
            return None
        if "signal" not in good:
            ratio["good"].complain("E103", "signal is missing in its spec", "write spec: {signal: ttft, max: 500ms}")
            return None
        return good

    def _indicator(self, root: Spot, spec: dict[str, Spot]) -> Spot | None:
        if "indicator" in spec and "indicatorRef" in spec:
            spec["indicatorRef"].complain("E210", "stands beside indicator", "keep one of them")
        if "indicator" in spec:
            found = fields(spec["indicator"], ("metadata", "spec")) or {}
            if "spec" not in found:
                spec["indicator"].complain("E103", "spec is missing", "write spec: {ratioMetric: ...}")
            return found.get("spec")
        if "indicatorRef" not in spec:
            root.complain("E103", "spec.indicator is missing", "write indicator: {metadata: ..., spec: ...}")
            return None
        name = scalar(spec["indicatorRef"], "the name of an SLI")
        if name is not None and name not in self._indicators:
            spec["indicatorRef"].complain("E103", f"no SLI {quoted(name)} in this file", "put it into the same file")
        return None if name is None else self._indicators.get(name)

    def _source(self, spot: Spot, known: tuple[str, ...]) -> dict[str, Spot] | None:
        outer = fields(spot, ("metricSource",)) or {}
        if "metricSource" not in outer:
            spot.complain("E103", "metricSource is missing", f"write metricSource: {{type: {SOURCE_TYPE}, spec: {{}}}}")
            return None
        source = fields(outer["metricSource"], _SOURCE)
        if source is None:
            return None
        kind = scalar(source["type"], SOURCE_TYPE) if "type" in source else None
        if kind != SOURCE_TYPE or "metricSourceRef" in source:
            at = source.get("metricSourceRef") or source.get("type") or outer["metricSource"]
            fix = f"write type: {SOURCE_TYPE} and spec: {{signal: ttft, max: 500ms}}"
            shown = quoted(kind) if kind else "another system"
            at.complain("E601", f"a query of {shown} cannot be imported", fix)
            return None
        return fields(source["spec"], known) if "spec" in source else {}


def _left_out(spot: Spot) -> None:
    spot.complain("W601", "is left out", "nothing, or say it in description")


def _notes(metadata: dict[str, Spot]) -> dict[str, Spot]:
    """Our annotations, without the prefix."""
    notes: dict[str, Spot] = {}
    if "annotations" not in metadata:
        return notes
    for key, at in own_fields(metadata["annotations"], f"{PREFIX}slice").items():
        name = key.removeprefix(PREFIX)
        if not key.startswith(PREFIX):
            _left_out(at)
        elif name not in _NOTES:
            at.complain("E101", "is no annotation of Trimtab", f"use one of {', '.join(_NOTES)}")
        elif isinstance(at.node, yaml.ScalarNode):
            notes[name] = at
        else:
            at.complain("E104", f"must be text, not {at.kind}", "write it as trimtab slo export does")
    return notes


def _labels(metadata: dict[str, Spot], notes: dict[str, Spot]) -> tuple[tuple[str, str], ...]:
    if "labels" in notes:
        inner = _inside(notes["labels"])
        return () if inner is None else _report(read_labels, inner, notes["labels"])
    return read_labels(metadata["labels"]) if "labels" in metadata else ()


def _noted_alerts(spot: Spot, slos: tuple[Slo, ...]) -> AlertPolicy:
    inner = _inside(spot)
    return AlertPolicy() if inner is None else _report(lambda at: read_alerts(at, slos), inner, spot)


def _inside(spot: Spot) -> Spot | None:
    """The document that an annotation holds; what is wrong with it is said at the annotation."""
    problems = Problems(spot.problems.source)
    inner = compose(str(spot.node.value), problems)
    for each in problems:
        spot.complain(each.code, each.message, each.fix)
    return inner


def _report(read: Callable[[Spot], T], inner: Spot, outer: Spot) -> T:
    value = read(inner)
    for each in inner.problems:
        outer.complain(each.code, each.message, each.fix)
    return value


def _made(spot: Spot, text: str) -> Spot:
    """Another text in the place of a value."""
    node = yaml.ScalarNode("", text, spot.node.start_mark, spot.node.end_mark)
    return Spot(spot.path, node, spot.mark, spot.problems)


def _as_percent(spot: Spot) -> Spot:
    share = number(spot, 0.0, 1.0, "E204", "0.99")
    return _made(spot, "99" if share is None else phrases.percent(share))


def _minutes(spot: Spot) -> Spot:
    """A window; a bare number means minutes."""
    text = scalar(spot, "5m") or ""
    return _made(spot, f"{float(text) * 60:.12g}s") if text.replace(".", "", 1).isdigit() else spot


def _plain(spot: Spot | None) -> object:
    """A value without its places, to compare."""
    return None if spot is None else _values(spot.node)


def _values(node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return {str(_values(key)): _values(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_values(each) for each in node.value]
    return str(node.value)
