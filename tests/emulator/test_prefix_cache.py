"""KV memory: accounts, hits, what is evicted first, and every call against a cache that sums everything anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.prefix_cache import Grant, PrefixCache, Prompt, prompt_tokens
from tests.emulator.oracle import Hold, PlainCache


def check(cache: PrefixCache) -> None:
    """What must hold between any two calls."""
    segments = cache._segments.values()
    assert cache.resident_tokens == sum(segment.tokens for segment in segments)
    assert cache._idle_tokens == sum(segment.idle for segment in segments)
    assert set(cache._idle) == {key for key, segment in cache._segments.items() if segment.idle}
    assert all(segment.tokens > 0 and segment.idle >= 0 for segment in segments)
    assert cache.reserved_tokens >= 0
    assert 0 <= cache.in_use_tokens <= cache.resident_tokens + cache.reserved_tokens <= cache.capacity_tokens


def grant(cache: PrefixCache, prompt: Prompt, output_tokens: int = 1) -> Grant:
    given = cache.admit(prompt, output_tokens)
    assert given is not None
    check(cache)
    return given


def put(cache: PrefixCache, *path: tuple[str, int]) -> None:
    """A request that computes the path and leaves it cached."""
    cache.release(grant(cache, path), path)
    check(cache)


def snapshot(cache: PrefixCache) -> object:
    segments = {key: (segment.tokens, list(segment.pins)) for key, segment in cache._segments.items()}
    totals = (cache.resident_tokens, cache.reserved_tokens, cache.evicted_tokens, cache._idle_tokens)
    return segments, list(cache._idle), totals


# -- hits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cached", "asked", "hit"),
    [
        (100, 200, 96),  # whole blocks of 16
        (96, 200, 96),
        (95, 200, 80),
        (15, 200, 0),
        (100, 100, 96),
        (96, 96, 80),  # one token at least is computed, and that costs a block
        (97, 97, 96),
        (500, 40, 32),  # an earlier turn sent again
        (500, 1, 0),
    ],
)
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute(cached, asked, hit):
    cache = PrefixCache(10_000, 16)
    put(cache, ("c", cached))
    assert cache.hit_tokens((("c", asked),)) == hit
    assert grant(cache, (("c", asked),)).hit_tokens == hit


def test_blocks_of_one_token_still_leave_one_to_compute():
    cache = PrefixCache(1000, 1)
    put(cache, ("c", 50))
    assert cache.hit_tokens((("c", 50),)) == 49
    assert cache.hit_tokens((("c", 51),)) == 50


def test_blocks_run_across_the_segments_of_a_path():
    cache = PrefixCache(1000, 16)
    put(cache, ("system", 20), ("c", 30))
    assert cache.hit_tokens((("system", 20), ("c", 30), ("next", 5))) == 48
    assert cache.hit_tokens((("system", 20), ("other", 30))) == 16


def test_a_hit_ends_where_the_path_leaves_what_is_cached():
    cache = PrefixCache(1000, 1)
    put(cache, ("system", 20), ("a", 30), ("b", 40))
    assert cache.hit_tokens((("system", 20), ("x", 30), ("b", 40))) == 20
    put(cache, ("system", 20), ("a", 30))
    assert cache.hit_tokens((("system", 20), ("a", 31), ("b", 40))) == 50


def test_an_empty_prompt_hits_nothing():
    assert PrefixCache(100, 16).hit_tokens(()) == 0


def test_conversations_share_their_system_prompt_and_count_it_once():
    cache = PrefixCache(1000, 16)
    for name in "abc":
        put(cache, ("system", 160), (name, 32))
    assert cache.resident_tokens == 160 + 3 * 32
    running = [grant(cache, (("system", 160), (name, 40)), 8) for name in "abc"]
    assert [one.hit_tokens for one in running] == [192, 192, 192]
    assert cache.in_use_tokens == 160 + 3 * (32 + 8 + 8)


# -- room ----------------------------------------------------------------------------------------------------


def test_a_request_reserves_what_it_lacks_and_what_it_will_say():
    cache = PrefixCache(1000, 16)
    put(cache, ("c", 100))
    running = grant(cache, (("c", 150),), 40)
    assert running.reserved_tokens == 150 - 96 + 40
    assert cache.in_use_tokens == 96 + 54 + 40
    cache.release(running, (("c", 189),))
    check(cache)
    assert (cache.resident_tokens, cache.reserved_tokens, cache.in_use_tokens) == (189, 0, 0)


def test_an_aborted_request_leaves_only_what_was_there_before():
    cache = PrefixCache(1000, 16)
    put(cache, ("c", 100))
    cache.release(grant(cache, (("c", 300),), 50), ())
    check(cache)
    assert (cache.resident_tokens, cache.in_use_tokens) == (100, 0)


def test_a_request_that_does_not_fit_now_changes_nothing():
    cache = PrefixCache(300, 16)
    put(cache, ("old", 64))
    put(cache, ("young", 64))
    running = grant(cache, (("big", 150),), 50)
    before = snapshot(cache)
    assert cache.admit((("old", 120),), 40) is None
    assert snapshot(cache) == before
    cache.release(running, ())
    assert cache.admit((("old", 120),), 40) is not None


def test_asking_in_vain_does_not_make_a_conversation_recent():
    cache = PrefixCache(300, 1)
    put(cache, ("old", 50))
    put(cache, ("young", 50))
    running = grant(cache, (("big", 100),), 50)
    assert cache.admit((("old", 200),), 1) is None
    cache.release(running, ())
    grant(cache, (("new", 200),), 20)
    assert (cache.hit_tokens((("old", 99),)), cache.hit_tokens((("young", 99),))) == (30, 50)


@pytest.mark.parametrize("prompt", [(), (("c", 0),), (("c", 5), ("d", 0))])
def test_a_prompt_without_tokens_is_refused(prompt):
    with pytest.raises(ValueError, match="one token or more"):
        PrefixCache(100, 16).admit(prompt, 1)


def test_a_request_for_no_output_is_refused():
    with pytest.raises(ValueError, match="one token or more"):
        PrefixCache(100, 16).admit((("c", 1),), 0)


def test_a_request_that_could_never_fit_is_refused_even_if_most_of_it_is_cached():
    cache = PrefixCache(100, 16)
    put(cache, ("c", 90))
    with pytest.raises(ValueError, match="90 prompt \\+ 11 output tokens exceed this node's 100"):
        cache.admit((("c", 90),), 11)
    grant(cache, (("c", 90),), 10)


def test_whatever_fits_an_empty_node_fits_an_idle_one():
    # The hit is 80 of 90 cached tokens; the other ten must not stand in the way of the twenty that are needed.
    cache = PrefixCache(100, 16)
    put(cache, ("c", 90))
    assert grant(cache, (("c", 90),), 10).hit_tokens == 80
    # An earlier turn is sent again for a long answer: what follows it in the cache has to go.
    cache = PrefixCache(1000, 16)
    put(cache, ("c", 900))
    assert grant(cache, (("c", 100),), 850).hit_tokens == 96


@pytest.mark.parametrize(("capacity", "block"), [(0, 16), (-1, 16), (100, 0)])
def test_a_cache_without_size_is_refused(capacity, block):
    with pytest.raises(ValueError, match="must be positive"):
        PrefixCache(capacity, block)


# -- eviction ------------------------------------------------------------------------------------------------


def left(cache: PrefixCache) -> dict[str, int]:
    return {key: segment.tokens for key, segment in cache._segments.items()}


def test_the_least_recently_used_goes_first_and_its_tail_before_its_head():
    cache = PrefixCache(300, 1)
    for name in "abc":
        put(cache, (name, 90))
    put(cache, ("a", 90))
    first = grant(cache, (("x", 60),), 1)
    assert left(cache) == {"a": 90, "b": 59, "c": 90}
    assert cache.hit_tokens((("b", 90),)) == 59
    grant(cache, (("y", 140),), 1)
    assert left(cache) == {"a": 90, "c": 8}
    assert cache.evicted_tokens == 31 + 59 + 82
    cache.release(first, ())


def test_what_follows_a_segment_goes_before_it():
    cache = PrefixCache(200, 1)
    put(cache, ("system", 50), ("a", 50), ("b", 50))
    sizes: list[dict[str, int]] = []
    for tokens in (40, 30, 40, 39, 10):
        grant(cache, ((f"x{tokens}{len(sizes)}", tokens),), 1)
        sizes.append(left(cache))
    assert sizes == [
        {"system": 50, "a": 50, "b": 50},  # 50 tokens were free
        {"system": 50, "a": 50, "b": 28},
        {"system": 50, "a": 37},
        {"system": 47},
        {"system": 36},
    ]


def test_a_shared_parent_outlives_all_its_children():
    cache = PrefixCache(240, 1)
    put(cache, ("system", 60), ("a", 60))
    put(cache, ("system", 60), ("b", 60))
    grant(cache, (("x", 180),), 1)
    assert left(cache) == {"system": 59}


def test_what_is_running_is_not_evicted():
    cache = PrefixCache(300, 16)
    put(cache, ("a", 96))
    put(cache, ("b", 96))
    running = grant(cache, (("a", 100),), 1)
    assert cache.admit((("x", 190),), 10) is None
    grant(cache, (("x", 189),), 10)
    assert left(cache) == {"a": 96}
    cache.release(running, (("a", 100),))
    check(cache)
    assert left(cache) == {"a": 100}


# -- restart -------------------------------------------------------------------------------------------------


def test_grants_from_before_a_restart_are_void():
    cache = PrefixCache(300, 16)
    put(cache, ("a", 96))
    old = grant(cache, (("a", 100),), 20)
    cache.clear()
    check(cache)
    assert (cache.resident_tokens, cache.reserved_tokens) == (0, 0)
    new = grant(cache, (("a", 100),), 20)
    cache.release(old, (("a", 119),))
    check(cache)
    assert (cache.resident_tokens, cache.in_use_tokens) == (0, 120)
    cache.release(new, (("a", 119),))
    assert (cache.resident_tokens, cache.in_use_tokens) == (119, 0)


def test_a_grant_is_released_once():
    cache = PrefixCache(300, 16)
    one = grant(cache, (("a", 100),), 20)
    cache.release(one, (("a", 119),))
    before = snapshot(cache)
    cache.release(one, ())
    assert snapshot(cache) == before


def test_a_prompt_that_is_held_is_a_hit_for_others_and_counts_as_before():
    cache = PrefixCache(1000, 16)
    put(cache, ("system", 48))
    lent = grant(cache, (("system", 48), ("a", 100)), 1)
    in_use = cache.in_use_tokens
    cache.hold(lent)
    check(cache)
    assert cache.in_use_tokens == in_use == 149 and cache.reserved_tokens == 1
    assert cache.hit_tokens((("system", 48), ("a", 100), ("b", 10))) == 144
    cache.release(lent, lent.prompt)
    check(cache)
    assert cache.in_use_tokens == 0 and cache.hit_tokens((("system", 48), ("a", 100), ("b", 10))) == 144


def test_a_prompt_held_from_before_a_restart_is_void():
    cache = PrefixCache(1000, 16)
    lent = grant(cache, (("a", 100),), 1)
    cache.clear()
    cache.hold(lent)
    check(cache)
    assert cache.resident_tokens == 0


# -- properties ----------------------------------------------------------------------------------------------

SYSTEM = 23
"""Tokens of the system prompt that every path with children goes through."""


@st.composite
def paths(draw) -> Prompt:
    """A prompt below the system prompt, or a part of that; a child `c1` hangs at the 17th token of `c0`."""
    depth = draw(st.integers(1, 3))
    branch = draw(st.sampled_from("ab"))
    if depth == 1:
        return (("system", draw(st.integers(1, SYSTEM + 10))),)
    if depth == 2:
        return (("system", SYSTEM), (f"{branch}0", draw(st.integers(1, 40))))
    return (("system", SYSTEM), (f"{branch}0", 17), (f"{branch}1", draw(st.integers(1, 40))))


ACTIONS = st.one_of(
    st.tuples(st.just("admit"), paths(), st.integers(1, 30)),
    st.tuples(st.just("complete"), st.integers(0, 9)),
    st.tuples(st.just("hold"), st.integers(0, 9)),
    st.tuples(st.just("abort"), st.integers(0, 9)),
    st.tuples(st.just("restart")),
)


@settings(max_examples=500)
@given(st.integers(40, 160), st.sampled_from([1, 4, 16]), st.lists(ACTIONS, max_size=40))
def test_any_history_keeps_the_accounts_right_and_evicts_as_the_plain_cache_does(capacity, block, actions):
    cache, plain = PrefixCache(capacity, block), PlainCache(capacity, block)
    running: list[tuple[Grant, Hold, Prompt]] = []
    held: list[Grant] = []
    for action in actions:
        match action:
            case ["admit", prompt, output] if prompt_tokens(prompt) + output <= capacity:
                before = snapshot(cache)
                given, hold = cache.admit(prompt, output), plain.admit(prompt, output)
                assert (given is None) == (hold is None)
                if given is None or hold is None:
                    assert snapshot(cache) == before
                    assert running, "what fits an empty node fits an idle one"
                else:
                    assert given.hit_tokens == hold.hit <= prompt_tokens(prompt) - 1
                    assert given.hit_tokens % block == 0
                    kept = (*prompt[:-1], (prompt[-1][0], prompt[-1][1] + output - 1))
                    running.append((given, hold, kept))
            case ["hold", index] if running:
                given, hold, _ = running[index % len(running)]
                if not any(given is each for each in held):
                    held.append(given)
                    in_use = cache.in_use_tokens
                    cache.hold(given)
                    plain.computed(hold, given.prompt)
                    assert cache.in_use_tokens <= in_use
            case ["complete" | "abort" as how, index] if running:
                given, hold, kept = running.pop(index % len(running))
                cache.release(given, kept if how == "complete" else ())
                plain.end(hold, kept if how == "complete" else ())
            case ["restart"]:
                cache.clear()
                plain = PlainCache(capacity, block)
                plain.evicted = cache.evicted_tokens
                for old, _, kept in running:
                    cache.release(old, kept)
                running.clear()
        check(cache)
        tokens = left(cache)
        assert tokens == plain.tokens and cache.evicted_tokens == plain.evicted
        for branch in "ab":  # nothing is left hanging without what it stands on
            if f"{branch}0" in tokens or f"{branch}1" in tokens:
                assert tokens["system"] >= SYSTEM
            if f"{branch}1" in tokens:
                assert tokens[f"{branch}0"] >= 17
