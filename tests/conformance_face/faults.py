"""What can be wrong with a hand-over: each a pure function from good `kv_transfer_params` to bad ones.

For whoever tests an engine, a connector or the router: the parameters given are not changed. `kills` marks those that
end the engine of a D that runs vLLM 0.32, or leave a request hanging in it: ask those of an engine that may die.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Params = dict[str, Any]

NOWHERE = 9
"""The discard port: nobody listens there."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to spoil a hand-over."""

    name: str
    spoil: Callable[[Mapping[str, Any]], Params]
    kills: bool = False
    shown: bool = True
    """Whether it can be seen by who has P's reply and P's block size and number; else only D can find out."""

    def __str__(self) -> str:
        return self.name


def changed(**changes: object) -> Callable[[Mapping[str, Any]], Params]:
    """Parameters with other values; `...` leaves one out."""

    def spoil(good: Mapping[str, Any]) -> Params:
        return {name: value for name, value in {**good, **changes}.items() if value is not ...}

    return spoil


def fewer_blocks(good: Mapping[str, Any]) -> Params:
    """The first block only: too few for a prompt of more than one."""
    return {**good, "remote_block_ids": [group[:1] for group in good["remote_block_ids"]]}


def foreign_blocks(good: Mapping[str, Any]) -> Params:
    """As many blocks, with numbers that no P has."""
    groups = good["remote_block_ids"]
    return {**good, "remote_block_ids": [[10_000_000 + number for number in range(len(group))] for group in groups]}


FAULTS = (
    Fault("unreachable side channel", changed(remote_port=NOWHERE, remote_engine_id="gone"), shown=False),
    Fault("wrong engine id", changed(remote_engine_id="somebody-else"), shown=False),
    Fault("blocks that P does not have", foreign_blocks),
    Fault("fewer blocks than the prompt needs", fewer_blocks, kills=True),
    Fault("null blocks", changed(remote_block_ids=None), kills=True),
    Fault("no request id", changed(remote_request_id=...), kills=True),
)
"""The table of single objects. Two more faults are in time: `expired` and `same parameters twice` send a good object
too late, or again."""
