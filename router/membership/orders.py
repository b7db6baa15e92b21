"""An operator's orders about nodes, as a file in the state directory: nodes added by hand, and nodes to drain.

Like the pin it works with the control process dead: `trimtab nodes` and the admin API write it, routers look at it
twice a second. A router with another state directory than its control process fetches the newer version from there and
keeps it in its own. Versions only grow; the higher one counts.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from .member import Member, engine_url, member
from .roster import MAX_MEMBERS

NAME = "nodes.json"


@dataclass(frozen=True, slots=True)
class Added:
    """A node that an operator added. `by` and `at` (ISO 8601) are for people."""

    url: str
    role: str
    address: str = ""
    model: str = ""
    by: str = ""
    at: str = ""
    weight: float = 1.0

    def member(self) -> Member:
        """As a source tells it. Raises ValueError."""
        return member(self.url, self.role, self.address, self.model, self.weight)


@dataclass(frozen=True, slots=True)
class Drained:
    """A node that gets no new turns until that is lifted."""

    url: str
    by: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """All of them."""

    version: int = 0
    added: tuple[Added, ...] = ()
    drained: tuple[Drained, ...] = ()

    def add(self, one: Added) -> Orders:
        """With this node, in the place of an earlier one of its URL. Raises ValueError."""
        if len(self.added) >= MAX_MEMBERS:
            raise ValueError(f"{MAX_MEMBERS} nodes have been added, which is the most")
        one = replace(one, url=one.member().url)
        return replace(self, added=(*(each for each in self.added if each.url != one.url), one))

    def remove(self, url: str) -> Orders:
        """Without this added node. Raises ValueError if it is none."""
        kept = tuple(each for each in self.added if each.url != url.rstrip("/"))
        if kept == self.added:
            raise ValueError(f"{url[:80]!r} was not added here; only nodes that were can be removed, others drained")
        return replace(self, added=kept)

    def drain(self, one: Drained) -> Orders:
        """With this node drained. Raises ValueError."""
        one = replace(one, url=engine_url(one.url))
        if len(self.drained) >= MAX_MEMBERS:
            raise ValueError(f"{MAX_MEMBERS} nodes are drained, which is the most")
        return replace(self, drained=(*(each for each in self.drained if each.url != one.url), one))

    def undrain(self, url: str) -> Orders:
        """With this node in use again. Raises ValueError if it is not drained."""
        kept = tuple(each for each in self.drained if each.url != url.rstrip("/"))
        if kept == self.drained:
            raise ValueError(f"{url[:80]!r} is not drained by an operator")
        return replace(self, drained=kept)


def orders_from_json(body: bytes) -> Orders:
    """Orders, checked. Raises ValueError."""
    try:
        found = msgspec.json.decode(body, type=Orders)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    for each in found.added:
        each.member()
    return found


def orders_to_json(orders: Orders) -> bytes:
    """The same as a file and on the wire."""
    return msgspec.json.format(msgspec.json.encode(orders), indent=1) + b"\n"


def read_orders(folder: Path) -> Orders:
    """The orders in force, empty ones where nobody gave any. Raises ValueError if the file is damaged."""
    path = folder / NAME
    try:
        return orders_from_json(path.read_bytes())
    except FileNotFoundError:
        return Orders()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} holds no orders ({error}); remove it and give them again") from None


def write_orders(folder: Path, orders: Orders) -> None:
    """Replace the file, atomically. Raises OSError."""
    partial = folder / f"{NAME}.part"
    partial.write_bytes(orders_to_json(orders))
    partial.replace(folder / NAME)


def change_orders(folder: Path, change: Callable[[Orders], Orders]) -> Orders:
    """Apply a change to what is in force, as the next version; one at a time. Raises ValueError, OSError."""
    with _alone(folder):
        before = read_orders(folder)
        after = replace(change(before), version=before.version + 1)
        write_orders(folder, after)
        return after


def keep_newer(folder: Path, orders: Orders) -> bool:
    """Replace the file if these are newer, or if it is damaged. Raises OSError."""
    with _alone(folder):
        try:
            known = read_orders(folder).version
        except ValueError:
            known = -1
        if orders.version <= known:
            return False
        write_orders(folder, orders)
        return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / f"{NAME}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
