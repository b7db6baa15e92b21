"""The fuzz targets in the suite: from their seeds, damaged at random, and on all that was ever found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .targets import SEEDS, TARGETS

FOUND: list[tuple[str, bytes]] = [
    ("body", b'\3\3{"in\xebclude":true}'),  # a key within stream_options that is no UTF-8: 500
    ("body", b'\3\3{"\\ud800":true}'),
    ("headers", b"/v1/d.."),  # a part of a path that only ends in dots: passed on, and stays below /v1/
    ("headers", b"bearer e"),
    ("body", b'\1\1"max_tokens":1' + b"0" * 400),  # more than a float holds: 500
]
"""(target, what broke it)."""


@pytest.mark.parametrize(("target", "data"), [(name, seed) for name, seeds in SEEDS.items() for seed in seeds])
def test_the_seeds_hold(target: str, data: bytes):
    TARGETS[target](data)


@pytest.mark.parametrize(("target", "data"), FOUND)
def test_what_was_found_holds(target: str, data: bytes):
    TARGETS[target](data)


EDITS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), st.binary(max_size=12)), max_size=4)


@pytest.mark.parametrize("target", TARGETS)
@given(seed=st.integers(0, 99), edits=EDITS, tail=st.binary(max_size=80))
@settings(max_examples=150, deadline=None)
def test_damaged_seeds_hold(target: str, seed: int, edits: list[tuple[int, int, bytes]], tail: bytes):
    seeds = SEEDS[target]
    data = seeds[seed % len(seeds)]
    for at, length, put in edits:
        data = data[:at] + put + data[at + length :]
    TARGETS[target](data + tail)


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_hold(target: str, data: bytes):
    TARGETS[target](data)
