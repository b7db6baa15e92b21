"""What a cache's blocks are called, and when what comes and goes of them is told."""

from __future__ import annotations

from emulator.kv_blocks import BlocksCleared, BlocksRemoved, BlocksStored, Change, KvBlocks
from emulator.prefix_cache import Grant, PrefixCache, Prompt

BLOCK = 16
SHARED: Prompt = (("s", 40),)


class Told:
    """A cache of 20 blocks and what it has told."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.cache = PrefixCache(20 * BLOCK, BLOCK)
        self.cache.watcher = KvBlocks(BLOCK, self.changes.append)

    def admit(self, prompt: Prompt, output_tokens: int = 1, *, ahead: bool = True, session: str = "a") -> Grant:
        grant = self.cache.admit(prompt, output_tokens, ahead=ahead, session=session)
        assert grant is not None
        return grant

    def new(self) -> list[Change]:
        changes, self.changes[:] = [*self.changes], []
        return changes


def test_a_prompt_that_is_held_is_told_at_once_and_its_release_tells_nothing_more():
    told = Told()
    grant = told.admit((*SHARED, ("a", 60)))
    told.cache.hold(grant)
    (stored,) = told.new()
    assert isinstance(stored, BlocksStored)
    assert (stored.parent, len(stored.names), stored.session) == (None, 100 // BLOCK, "a")
    told.cache.release(grant, grant.prompt)
    assert told.new() == []


def test_what_follows_a_shared_beginning_names_its_last_block_as_parent():
    told = Told()
    told.cache.release(told.admit(SHARED), SHARED)
    told.cache.release(told.admit((*SHARED, ("b", 30)), session="b"), (*SHARED, ("b", 50)))
    first, second = told.new()
    assert isinstance(first, BlocksStored) and isinstance(second, BlocksStored)
    assert (second.parent, second.session, len(second.names)) == (first.names[-1], "b", 90 // BLOCK - 40 // BLOCK)


def test_memory_that_running_requests_fill_pushes_out_tails_first_and_that_is_told():
    told = Told()
    told.cache.release(told.admit((("a", 160),)), (("a", 160),))
    (stored,) = told.new()
    told.admit((("b", 150),), ahead=False, session="b")
    told.cache.grow(40)
    (removed,) = told.new()
    assert isinstance(stored, BlocksStored) and isinstance(removed, BlocksRemoved)
    assert removed.names == stored.names[:-3:-1]


def test_a_restart_clears_all():
    told = Told()
    told.cache.release(told.admit(SHARED), SHARED)
    told.cache.clear()
    assert told.new()[1:] == [BlocksCleared()]
