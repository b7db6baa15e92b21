"""The two routes of a later turn on real engines: what moves over NIXL, what is in the cache, and that the text is the
engine's own."""

from __future__ import annotations

from uuid import uuid4

from .router import alone, cached_tokens, opening, total, usage

BLOCK = 32
TOKENS = 48
TRANSFERRED = {"source": "external_kv_transfer"}
COMPUTED = {"source": "local_compute"}


def test_the_first_turn_is_prefilled_on_p_and_its_cache_moves_to_d(engines, router):
    decode = [engine for engine in engines if engine.role == "decode"]
    text = opening(times=27)
    moved, computed = (
        total(decode, "prompt_tokens_by_source_total", **TRANSFERRED),
        total(decode, "prompt_tokens_by_source_total", **COMPUTED),
    )
    answer = router.ask(text, session=uuid4().hex, max_tokens=TOKENS)
    assert answer.status == 200 and answer.done
    assert answer.route[0] == "prefill_transfer"
    assert usage(answer)["completion_tokens"] == TOKENS
    assert total(decode, "prompt_tokens_by_source_total", **TRANSFERRED) - moved == usage(answer)["prompt_tokens"]
    assert total(decode, "prompt_tokens_by_source_total", **COMPUTED) == computed, "D computed nothing of the prompt"
    assert answer.text == alone(engines["P0"], text, max_tokens=TOKENS).text


def test_a_second_turn_on_either_route_reads_the_cache_and_says_what_the_engine_says_alone(x, engines, router):
    decode = [engine for engine in engines if engine.role == "decode"]
    session, text, more = uuid4().hex, opening(times=27), "and now something else: " + "pack my box. " * 8
    first = router.ask(text, session=session, max_tokens=TOKENS)
    moved = total(decode, "prompt_tokens_by_source_total", **TRANSFERRED)
    prefilled = total([engines["P0"]], "prompt_tokens_by_source_total", **COMPUTED)
    second = router.ask(text, first.text, more, session=session, max_tokens=TOKENS)
    moved = total(decode, "prompt_tokens_by_source_total", **TRANSFERRED) - moved
    prefilled = total([engines["P0"]], "prompt_tokens_by_source_total", **COMPUTED) - prefilled
    assert second.status == 200 and second.done
    assert second.route == ("append_local" if x else "prefill_transfer", "pinned")
    first_turn = usage(first)["prompt_tokens"] + TOKENS - 1  # the last answer token has no KV entry yet
    if x:
        assert moved == prefilled == 0, "nothing but D had to do with it"
        assert cached_tokens(second) >= first_turn // BLOCK * BLOCK, "prompt and answer of turn 1 were in D's cache"
    else:
        new = usage(second)["prompt_tokens"] - first_turn
        assert 0 < moved <= new + BLOCK, "only what D lacks is moved"
        assert prefilled >= new, "P lacks the answer and the new message"
    assert second.text == alone(engines["P0"], text, first.text, more, max_tokens=TOKENS).text
