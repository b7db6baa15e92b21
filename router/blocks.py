"""The KV blocks that one node says it holds, as its own events tell it: which prefix of a conversation is there.

A block's name stands for its tokens and for all before them, so the blocks form a tree, and an engine evicts no
block before those that follow it. A conversation is a path in that tree. The engine repeats the session id of a
request with every block that it stores for it, so the deepest block stored for a session ends its path, and

    held(session) = prefix length at the deepest block of the path that is still there

No tokens are needed, and what conversations share is counted for each. What was evicted and then stored again for
another conversation counts from the next turn on: so nothing has to be remembered of what is gone. A block that was
there before the events were followed is known by its name only; how long the prefix is that it ends follows from the
length that the conversation has when its turn is over (`settle`).

Source of the events: vLLM's `distributed/kv_events.py`. Blocks are counted by copy: one name may be stored
twice, and is there until it was removed twice. Left out: models with several KV groups (their hits need a block
of each), tiers other than GPU memory, and data-parallel ranks but the first: there the ledger answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from .turn import ConversationKey

MAX_BLOCKS = 1_000_000
"""Some 150 MB. A node that says it holds more is not followed."""
MAX_SESSIONS = 100_000

Name = int | bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that follow each other, the first of them `parent` (None: the beginning)."""

    parent: Name | None
    names: Sequence[Name]
    block_tokens: int
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are gone, one copy each."""

    names: Sequence[Name]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks are gone."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Something that makes the rest no answer to what a prompt would hit."""

    why: str


Event = Stored | Removed | Cleared | Unsupported


@dataclass(slots=True)
class _Tree:
    """Where its lengths count from: 0, or an unknown number of tokens."""

    begins_at: int | None


@dataclass(slots=True, eq=False)
class _Block:
    name: Name
    parent: _Block | None
    tokens: int
    """Prefix length at its end, from where the tree begins."""
    tree: _Tree
    copies: int = 0


@dataclass(slots=True, eq=False)
class _End:
    """Where paths end now: their deepest block that is there. `into`: the end that this one became one with."""

    block: _Block | None
    into: _End | None = None


@dataclass(slots=True)
class _Path:
    """A session: its end and, if one was told, how deep its last block lay; and how long its last turn left it."""

    end: _End | None = None
    tree: _Tree | None = None
    told_tokens: int = 0
    kept_tokens: int = 0


def session_of(key: ConversationKey) -> str:
    """The name by which engines get to know a conversation: the same for all its turns, and no client's own word."""
    state = blake2b(digest_size=12)
    for part in key:
        data = part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(4, "big") + data)
    return state.hexdigest()


class Blocks:
    """What one node says. Batches are numbered from 0 by each process of the engine."""

    __slots__ = (
        "_block_tokens",
        "_blocks",
        "_ends",
        "_paths",
        "_root",
        "events",
        "expected",
        "gaps",
        "limit",
        "live",
        "problem",
    )

    def __init__(self, limit: int = MAX_BLOCKS) -> None:
        self.limit = limit
        self.expected: int | None = None
        """Number of the next batch; None before the first."""
        self.events = 0
        self.gaps = 0
        """Times at which batches were lost for good."""
        self.live = False
        """Nothing was missed since the last batch, as far as is known; else the ledger answers."""
        self.problem = ""
        """Why this node's events are no use; empty if they are."""
        self._blocks: dict[Name, _Block] = {}
        self._ends: dict[_Block, _End] = {}
        self._paths: OrderedDict[str, _Path] = OrderedDict()
        self._root = _Tree(0)
        self._block_tokens = 1

    def __len__(self) -> int:
        return len(self._blocks)

    # -- what the engine says ------------------------------------------------------------------------------------------

    def take(self, number: int, events: Sequence[Event]) -> None:
        """The next batch. A number that was passed over empties the belief; one that is lower is another process."""
        if self.expected is not None and number != self.expected:
            self.gaps += number > self.expected
            self.forget()
        self.expected, self.live = number + 1, True
        for event in events:
            self._apply(event)
        if len(self._blocks) > self.limit:
            self.problem = f"it names more than {self.limit} blocks"
            self.forget()

    def lose(self) -> None:
        """A batch could not be read: what it changed is not known."""
        self.gaps += 1
        self.pause()
        self.forget()

    def pause(self) -> None:
        """The connection broke: whether something is missed will show with the number of the next batch."""
        self.live = False

    def restart(self) -> None:
        """The engine is another process, or gone: it holds nothing, and its next batch may have any number."""
        self.expected, self.live, self.problem = None, False, ""
        self.forget()

    def forget(self) -> None:
        """What is there is unknown from here on; paths are known again from their next turn."""
        self._clear()
        self._paths.clear()

    def _apply(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            for name in event.names:
                self._remove(name)
        elif isinstance(event, Cleared):
            self._clear()
        else:
            self.problem = event.why
            self.forget()

    def _store(self, event: Stored) -> None:
        if self.problem:
            return
        self._block_tokens = event.block_tokens
        parent: _Block | None = None
        if event.parent is not None:
            parent = self._blocks.get(event.parent)
            if parent is None:  # stored before we listened: it is there, or nothing could have followed it
                parent = self._blocks[event.parent] = _Block(event.parent, None, 0, _Tree(None), 1)
        for name in event.names:
            tokens = event.block_tokens + (0 if parent is None else parent.tokens)
            tree = self._root if parent is None else parent.tree
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = _Block(name, parent, tokens, tree)
            elif block.tree is not tree and block.parent is None and tree.begins_at is not None:
                block.parent = parent  # the beginning of a tree that was known by its last blocks only
                block.tree.begins_at = tree.begins_at + tokens - block.tokens
            block.copies += 1
            parent = block
        path = None if event.session is None else self._paths.get(event.session)
        if path is not None and parent is not None and event.names:
            path.end = self._ends.setdefault(parent, _End(parent))
            path.tree, path.told_tokens = parent.tree, parent.tokens

    def _remove(self, name: Name) -> None:
        block = self._blocks.get(name)
        if block is None:
            return
        block.copies -= 1
        if block.copies > 0:
            return
        del self._blocks[name]
        end = self._ends.pop(block, None)
        if end is None:
            return
        above = block.parent
        while above is not None and above.name not in self._blocks:
            above = above.parent
        end.block = None if above is None else self._blocks[above.name]
        there = end if end.block is None else self._ends.setdefault(end.block, end)
        if there is not end:
            end.block, end.into = None, there

    def _clear(self) -> None:
        self._blocks.clear()
        for end in self._ends.values():
            end.block = None
        self._ends.clear()

    # -- what the router asks ------------------------------------------------------------------------------------------

    def expect(self, session: str) -> None:
        """A request of the session is on its way: what is stored for it is its path."""
        self._paths.setdefault(session, _Path())
        self._paths.move_to_end(session)
        while len(self._paths) > MAX_SESSIONS:
            self._paths.popitem(last=False)

    def settle(self, session: str, kept_tokens: int) -> None:
        """Its turn is over and left this much of it; 0: nobody knows how much."""
        path = self._paths.get(session)
        if path is not None:
            path.kept_tokens = kept_tokens

    def held(self, session: str) -> int | None:
        """Tokens of the session's last turn that are there; None if the events do not tell."""
        path = self._paths.get(session)
        if path is None or path.end is None or path.tree is None or self.problem or not self.live:
            return None
        if path.tree.begins_at is None:
            begins_at = path.kept_tokens - path.kept_tokens % self._block_tokens - path.told_tokens
            if path.kept_tokens <= 0 or begins_at < 0:
                return None
            path.tree.begins_at = begins_at
        while path.end.into is not None:
            path.end = path.end.into
        block = path.end.block
        return 0 if block is None else block.tokens + (block.tree.begins_at or 0)
