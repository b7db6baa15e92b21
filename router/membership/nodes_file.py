"""Nodes from a YAML file, read again whenever it changes.

    version: 1
    prefill: [http://10.0.0.1:8000]
    decode:
      - http://10.0.0.2:8000
      - {url: http://10.0.0.3:8000, address: 10.0.0.3:21001, model: llama, weight: 2}
    replica: []

A file that cannot be read, or has a single mistake, changes nothing: the nodes stay, and the problem has its line and
column.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from slos.document import compose
from slos.files import read_text
from slos.nodes import Spot, fields, items, number, scalar
from slos.problem import Problems, SpecError

from ..turn import Role
from .member import MAX_WEIGHT, Member, member
from .source import Tell

LOOK_S = 1.0
_EXAMPLE = "http://10.0.0.2:8000"


def read_nodes(text: str, source: str) -> list[Member]:
    """The nodes of a file. Raises SpecError with every problem."""
    problems = Problems(source)
    found: dict[str, Member] = {}
    root = compose(text, problems)
    top = fields(root, ("version", *Role)) if root is not None else None
    if root is not None and top is not None:
        if "version" not in top:
            root.complain("E103", "version is missing", "write version: 1 on the first line")
        elif scalar(top["version"], "1") not in (None, "1"):
            top["version"].complain("E112", "is not known", "write 1")
        for role in Role:
            for spot in _listed(top.get(role)):
                each = _member(spot, role)
                if each is not None and each.url in found:
                    spot.complain("E102", f"{each.url} is named twice; a node has one role", "keep one of them")
                elif each is not None:
                    found[each.url] = each
    problems.raise_any()
    return list(found.values())


def _listed(spot: Spot | None) -> list[Spot]:
    if spot is None or spot.node.value == []:  # an empty list is a way to say that there are none
        return []
    return items(spot) or []


def _member(spot: Spot, role: Role) -> Member | None:
    inside = {"url": spot}
    if isinstance(spot.node.value, list):
        inside = fields(spot, ("url", "address", "model", "weight")) or {}
        if "url" not in inside:
            spot.complain("E103", "url is missing", f"write {{url: {_EXAMPLE}}}")
            return None
    weight = number(inside.pop("weight"), 0.0, MAX_WEIGHT, "E104", "2") if "weight" in inside else 1.0
    texts = {key: scalar(value, _EXAMPLE if key == "url" else "10.0.0.2:21001") for key, value in inside.items()}
    if None in texts.values() or weight is None:
        return None
    try:
        return member(texts["url"] or "", role, texts.get("address") or "", texts.get("model") or "", weight)
    except ValueError as error:
        message, _, fix = str(error).partition("; ")
        spot.complain("E104", message, fix)
        return None


class FileSource:
    """Looks at the file every second; a rename onto it, as ConfigMaps are updated, counts as a change too."""

    name = "file"

    def __init__(self, path: Path, look_s: float = LOOK_S) -> None:
        self._path = path
        self._look_s = look_s
        self._good: list[Member] | None = None
        """What it holds, unless it is bad."""

    async def run(self, tell: Tell) -> None:
        """For ever."""
        seen: object = None
        while True:
            now = await asyncio.to_thread(self._signature)
            if now != seen:
                seen = now
                await self.look(tell)
            elif self._good is not None:
                tell.nodes(self._good)  # it still says so
            await asyncio.sleep(self._look_s)

    async def look(self, tell: Tell) -> None:
        """Read it once."""
        try:
            self._good = await asyncio.to_thread(self._read)
        except SpecError as error:
            self._good = None
            tell.failed("; ".join(str(problem) for problem in error.problems[:3]))
        else:
            tell.nodes(self._good)

    def _read(self) -> list[Member]:
        return read_nodes(read_text(self._path), str(self._path))

    def _signature(self) -> object:
        try:
            found = os.stat(self._path)
        except OSError as error:
            return error.errno
        return found.st_mtime_ns, found.st_size, found.st_ino
