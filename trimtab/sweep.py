"""Sweeps: one scenario file read again for every combination of values.

A path names a scalar of the file as problems do: `load`, `phases[0].traffic[0].rate`, `link.bandwidth`. Keys that
the file does not write are added. Every point goes through the same reader as the file itself, so a
value that the file could not hold is a problem at its place in the sweep.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import yaml

from slos.document import compose
from slos.files import read_text
from slos.nodes import Spot, items
from slos.problem import Problems, quoted

from .scenario_file import Experiment, read_experiment

MAX_POINTS = 1000
_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\[\d{1,4}\]|\.[A-Za-z_][\w-]*)*")
_STEP = re.compile(r"\[(\d+)\]|([A-Za-z_][\w-]*)")


@dataclass(frozen=True, slots=True)
class Point:
    """One combination: the values by path, as written, and what they make of the file."""

    at: tuple[tuple[str, str], ...]
    experiment: Experiment


@dataclass(frozen=True, slots=True)
class _Axis:
    path: str
    values: tuple[yaml.ScalarNode, ...]


def load_points(path: Path, *, sweeps: Sequence[str] = (), data: Path | None = None) -> tuple[Point, ...]:
    """The points of a scenario file; one, without values, where nothing is swept. `sweeps` are PATH=V1,V2,… beside
    the file's own, and instead of it for the same path. Raises SpecError with every problem.
    """
    problems = Problems(str(path))
    text = read_text(path)
    root = compose(text, problems)
    problems.raise_any()
    assert root is not None  # without a root there is a problem
    base = read_experiment(root, path.parent, data)
    axes = _axes(root, sweeps)
    problems.raise_any()
    if not axes:
        assert base is not None
        return (Point((), base),)
    if prod(len(axis.values) for axis in axes) > MAX_POINTS:
        root.complain("E109", f"the sweep has more than {MAX_POINTS} points", "sweep fewer values")
        problems.raise_any()
    points: list[Point] = []
    seen: set[str] = set()
    for values in product(*(axis.values for axis in axes)):
        at = tuple((axis.path, str(value.value)) for axis, value in zip(axes, values, strict=True))
        swept = root
        for axis, value in zip(axes, values, strict=True):
            swept = _with(swept, axis.path, value)
        found = Problems(str(path))
        experiment = read_experiment(Spot("", swept.node, root.mark, found), path.parent, data)
        for problem in found:
            if str(problem) not in seen:
                seen.add(str(problem))
                message = f"{problem.message} (with {', '.join(f'{name}={text}' for name, text in at)})"
                problems.add(problem.line, problem.column, problem.code, message, problem.fix)
        if experiment is not None:
            points.append(Point(at, experiment))
    problems.raise_any()
    return tuple(points)


def _axes(root: Spot, sweeps: Sequence[str]) -> list[_Axis]:
    axes: dict[str, _Axis] = {}
    spot = _child(root, "sweep")
    if spot is not None:
        if not isinstance(spot.node, yaml.MappingNode):
            spot.complain("E104", f"must map paths to values, not {spot.kind}", "write load: [0.7, 1]")
            return []
        for key, node in spot.node.value:
            at = Spot(f"sweep.{key.value}", node, key.start_mark, root.problems)
            values = [item.node for item in items(at) or ()]
            _add(axes, root, at, str(key.value), values)
    for text in sweeps:
        path, _, listed = text.partition("=")
        at = Spot("--sweep", root.node, root.mark, root.problems)
        place = _place(root, path.strip())
        values = [yaml.ScalarNode("", value.strip(), place, place) for value in listed.split(",") if value.strip()]
        if not values:
            at.complain("E306", f"{quoted(text)} names no values", "write PATH=V1,V2, e.g. load=0.7,0.85,1")
            continue
        axes.pop(path.strip(), None)
        _add(axes, root, at, path.strip(), values)
    return list(axes.values())


def _add(axes: dict[str, _Axis], root: Spot, at: Spot, path: str, values: list[yaml.Node]) -> None:
    if not all(isinstance(value, yaml.ScalarNode) for value in values):
        at.complain("E306", "a value is not a scalar", "list single values, such as [0.7, 1]")
    elif path in axes:
        at.complain("E102", f"{quoted(path)} is swept twice", "keep one of them")
    elif _PATH.fullmatch(path) is None or path.split(".")[0].split("[")[0] in ("sweep", "version"):
        at.complain("E306", f"{quoted(path)} is no path of a value", "write e.g. phases[0].traffic[0].rate")
    elif not _fits(root.node, _steps(path)):
        at.complain("E306", f"the file has no place for {quoted(path)}", "name what the file writes, e.g. phases[0]")
    elif values:
        axes[path] = _Axis(path, tuple(value for value in values if isinstance(value, yaml.ScalarNode)))


def _steps(path: str) -> list[str | int]:
    return [int(index) if index else name for index, name in _STEP.findall(path)]


def _fits(node: yaml.Node | None, steps: list[str | int]) -> bool:
    """Whether a scalar can stand at the end of the steps: mappings on the way may be missing, items of lists not."""
    if not steps:
        return isinstance(node, yaml.ScalarNode | None)
    if isinstance(steps[0], int):
        below = _below(node, steps[0])
        return below is not None and _fits(below, steps[1:])
    return isinstance(node, yaml.MappingNode | None) and _fits(_below(node, steps[0]), steps[1:])


def _place(root: Spot, path: str) -> yaml.Mark:
    """Where the file has what a sweep of the command line replaces, or the nearest around it."""
    node = root.node
    for step in _steps(path):
        below = _below(node, step)
        if below is None:
            break
        node = below
    return node.start_mark


def _below(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(step, int):
        inside = node.value if isinstance(node, yaml.SequenceNode) else []
        return inside[step] if step < len(inside) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == step), None)


def _child(root: Spot, name: str) -> Spot | None:
    pairs = root.node.value if isinstance(root.node, yaml.MappingNode) else []
    return next((Spot(name, value, key.start_mark, root.problems) for key, value in pairs if key.value == name), None)


def _with(root: Spot, path: str, value: yaml.ScalarNode) -> Spot:
    """The document with another scalar at the path; what is not on the path is shared."""
    return Spot(root.path, _replaced(root.node, _steps(path), value), root.mark, root.problems)


def _replaced(node: yaml.Node, steps: list[str | int], value: yaml.ScalarNode) -> yaml.Node:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        inside = [_replaced(below, rest, value) if at == step else below for at, below in enumerate(node.value)]
        return yaml.SequenceNode(node.tag, inside, node.start_mark, node.end_mark)
    # A problem with a value points at its key: here at the value, where the sweep has it.
    here = yaml.ScalarNode("", step, value.start_mark, value.end_mark)
    pairs = [
        (key if rest or key.value != step else here, _replaced(below, rest, value) if key.value == step else below)
        for key, below in node.value
    ]
    if not any(key.value == step for key, _ in pairs):
        empty = yaml.MappingNode("", [], value.start_mark, value.end_mark)
        pairs.append((here, _replaced(empty, rest, value)))
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
