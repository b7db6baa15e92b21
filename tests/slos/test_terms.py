"""What a request says of its own SLOs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.terms import NO_TERMS, Terms, read_terms

GOLD = frozenset({"gold"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"500", 0.5),
        (b" 500 ", 0.5),
        (b"1", 0.001),
        (b"0", 0.001),
        (b"600000", 600.0),
        (b"600001", 600.0),
        (b"9" * 64, 600.0),
        (b"9" * 65, None),
        (b"", None),
        (b"-5", None),
        (b"+5", None),
        (b"5.0", None),
        (b"5ms", None),
        (b"1e3", None),
        (b"0x10", None),
        (b"nan", None),
        ("٥".encode(), None),
        (b"500, 600", None),
    ],
)
def test_a_deadline_is_whole_milliseconds_moved_into_bounds_and_anything_else_is_none(text: bytes, seconds):
    for name in (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms"):
        assert read_terms({name: text}, "", GOLD).ttft_s == seconds
    for name in (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms"):
        assert read_terms({name: text}, "", GOLD).tpot_s == seconds


def test_our_name_comes_before_the_alias_and_a_bad_one_does_not_hide_it():
    both = {b"x-slo-ttft-ms": b"100", b"x-llm-d-slo-ttft-ms": b"200"}
    assert read_terms(both, "", GOLD).ttft_s == 0.1
    assert read_terms({**both, b"x-slo-ttft-ms": b"soon"}, "", GOLD).ttft_s == 0.2


def test_a_class_that_no_slo_names_is_none():
    assert read_terms({b"x-slo-class": b" gold "}, "", GOLD) == Terms("gold")
    assert read_terms({b"x-slo-class": b"lead"}, "", GOLD) is NO_TERMS
    assert read_terms({b"x-slo-class": b""}, "", frozenset()) is NO_TERMS


@given(st.binary(max_size=80))
def test_no_header_is_answered_with_an_error(value: bytes):
    names = (b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-slo-class")
    terms = read_terms(dict.fromkeys(names, value), "t", GOLD)
    assert all(own_s is None or 0.001 <= own_s <= 600.0 for own_s in (terms.ttft_s, terms.tpot_s))
    assert terms.slo_class in ("", "gold") and terms.tenant == "t"
