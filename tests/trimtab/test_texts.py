"""Prompts of exact length: with bytes, with words, with a subword tokenizer of sorts, under chat templates."""

import asyncio
import re
from collections.abc import Callable, Sequence
from random import Random

import pytest

from trimtab.measure.texts import Message, Texts

ANSWER_TOKENS = 8


def by_bytes(text: str) -> int:
    return len(text.encode())


def by_quarters(text: str) -> int:
    return -(-len(text.encode()) // 4)


def by_pieces(text: str) -> int:
    """Words, long ones in pieces of five letters, as subword vocabularies have them."""
    return sum(-(-len(word) // 5) for word in re.findall(r" ?\S+", text))


TOKENIZERS = [by_bytes, by_quarters, by_pieces]


def made(tokens: Callable[[str], int], header: int = 4, seed: int = 0) -> Texts:
    """Texts for an engine with that tokenizer; every message and the answer to come have a header."""

    async def count(messages: Sequence[Message]) -> int:
        return sum(header + tokens(m["content"]) for m in messages) + header

    said = [{"role": "user", "content": "a first message"}, {"role": "assistant", "content": "x" * ANSWER_TOKENS}]
    # The answer's own header is the last of the first prompt; what it says counts as it was generated.
    opened = asyncio.run(count(said[:1])) + (tokens(said[1]["content"]))
    return Texts(count, Random(seed), (said, opened))


def first_tokens(texts: Texts, wanted: int) -> int:
    return asyncio.run(texts.count([{"role": "user", "content": texts.first(wanted)}]))


def later_tokens(texts: Texts, wanted: int) -> int:
    said, before = texts.anchor
    return asyncio.run(texts.count([*said, {"role": "user", "content": texts.later(wanted)}])) - before


@pytest.mark.parametrize("tokens", TOKENIZERS)
def test_first_and_later_messages_have_the_planned_tokens(tokens):
    texts = made(tokens)
    asyncio.run(texts.learn((128, 1024, 8192), (16, 32, 64, 128, 256, 512, 1024)))
    assert texts.missed == {}
    for wanted in (128, 1024, 8192):
        assert {first_tokens(texts, wanted) for _ in range(20)} == {wanted}
    for wanted in (16, 32, 64, 128, 256, 512, 1024):
        assert later_tokens(texts, wanted) == wanted


@pytest.mark.parametrize("tokens", TOKENIZERS)
def test_no_two_openers_begin_alike(tokens):
    texts = made(tokens)
    asyncio.run(texts.learn((1024,), ()))
    openers = [texts.first(1024) for _ in range(500)]
    assert len({opener[:40] for opener in openers}) == len(openers)


def test_another_draw_says_something_else():
    one, two = made(by_quarters, seed=0), made(by_quarters, seed=1)
    for texts in (one, two):
        asyncio.run(texts.learn((128,), ()))
    assert one.first(128) != two.first(128)


def test_a_template_longer_than_the_message_is_noted_and_the_shortest_message_stands():
    texts = made(by_pieces, header=20)
    asyncio.run(texts.learn((128,), (16,)))
    assert texts.missed == {(False, 16): later_tokens(texts, 16)}
    assert later_tokens(texts, 16) == 41 and first_tokens(texts, 128) == 128


def test_words_that_cost_more_than_the_others_are_left_out():
    texts = made(lambda text: by_pieces(text) + text.count("acid"))
    asyncio.run(texts.learn((128,), ()))
    assert {first_tokens(texts, 128) for _ in range(200)} == {128}
