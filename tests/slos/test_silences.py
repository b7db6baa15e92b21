"""What a silence holds back."""

import pytest

from slos.silences import KEPT_S, MAX_SILENCES, kept, matcher, silence

LABELS = {"alertname": "SLOBreach", "slo": "chat-ttft", "severity": "page"}


def made(*matchers: str, length_s: float = 3600.0, id: str = "a", starts_s: float = 1000.0):
    return silence(id, matchers, starts_s, length_s, "ann", "deploy")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("slo=chat-ttft", True),
        ("slo=chat-*", True),
        ("slo=Chat-*", False),
        ('slo="chat-ttft"', True),
        ("slo!=chat-ttft", False),
        ("slo!=other", True),
        ("team=x", False),
        ("team!=x", True),
        ("team=", True),
        (" severity=page ", True),
    ],
)
def test_a_matcher_compares_one_label_with_a_glob(text: str, holds: bool):
    assert matcher(text).matches(LABELS) is holds


@pytest.mark.parametrize("text", ["", "slo", "=x", "1a=x", "a-b=x", "slo~x", "slo=" + "x" * 300])
def test_what_is_no_matcher_says_what_to_write(text: str):
    with pytest.raises(ValueError, match="write label=value"):
        matcher(text)


def test_all_matchers_have_to_hold_and_only_until_the_end():
    both = made("slo=chat-*", "severity=page")
    assert both.silences(LABELS, 1000.0) and both.silences(LABELS, 4599.0)
    assert not both.silences(LABELS, 999.0) and not both.silences(LABELS, 4600.0)
    assert not both.silences({**LABELS, "severity": "ticket"}, 1000.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"matchers": []}, "1 to 20 matchers"),
        ({"matchers": ["slo=*"]}, "everything"),
        ({"matchers": ["slo!=x"]}, "everything"),
        ({"length_s": 0.0}, "within a year"),
        ({"length_s": 1e9}, "within a year"),
        ({"length_s": float("nan")}, "within a year"),
        ({"author": " "}, "by whom and why"),
        ({"comment": ""}, "by whom and why"),
        ({"comment": "x" * 501}, "at most 500"),
    ],
)
def test_a_silence_without_an_end_an_author_or_a_reason_is_refused(change: dict, says: str):
    given = {"id": "a", "matchers": ["slo=x"], "starts_s": 0.0, "length_s": 60.0, "author": "ann", "comment": "why"}
    with pytest.raises(ValueError, match=says):
        silence(**{**given, **change})


def test_what_ended_long_ago_is_forgotten_and_the_number_is_bounded():
    old, new = made("slo=x"), made("slo=x", id="b", starts_s=KEPT_S)
    assert kept((old, new), KEPT_S + 4601.0) == (new,)
    many = [made("slo=x", id=str(at), length_s=float(at + 1)) for at in range(MAX_SILENCES + 5)]
    assert len(kept(many, 1000.0)) == MAX_SILENCES and kept(many, 1000.0)[0].id == str(MAX_SILENCES + 4)
