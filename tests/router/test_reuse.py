"""An engine found less than was believed: was it evicted, or is it another prompt?"""

from __future__ import annotations

from router.reuse import Reuse, Verdict


def test_as_much_as_believed_is_a_hit():
    assert Reuse(1000).judge(1072, 1072, 16, True) is Verdict.HIT
    assert Reuse(1000).judge(0, 0, 16, True) is Verdict.HIT


def test_nothing_found_is_eviction():
    reuse = Reuse(1000)
    assert reuse.judge(1072, 0, 16, True) is Verdict.EVICTED
    assert reuse.usable(1080) == 1080


def test_a_prefix_that_ends_where_the_answer_began_is_a_changed_answer():
    reuse = Reuse(1000)
    assert reuse.judge(1072, 992, 16, True) is Verdict.CHANGED
    assert reuse.usable(1080) == 1000
    assert reuse.judge(992, 992, 16, True) is Verdict.HIT
    assert reuse.usable(1080) == 1000


def test_answers_that_are_found_again_are_believed_in_again():
    reuse = Reuse(1000, answers=False)
    assert reuse.judge(992, 1072, 16, True) is Verdict.HIT
    assert reuse.usable(1080) == 1080


def test_a_prompt_that_never_repeats_is_eviction_only_once():
    reuse = Reuse(1000)
    assert [reuse.judge(1072, 0, 16, True) for _ in range(3)] == [Verdict.EVICTED, Verdict.CHANGED, Verdict.CHANGED]
    assert reuse.judge(1072, 1072, 16, True) is Verdict.HIT
    assert reuse.judge(1072, 0, 16, True) is Verdict.EVICTED


def test_a_node_that_did_not_decode_says_nothing_of_answers():
    reuse = Reuse(1000)
    assert reuse.judge(992, 976, 16, False) is Verdict.EVICTED
    assert reuse.answers
    reuse.answers = False
    assert reuse.judge(992, 1072, 16, False) is Verdict.HIT
    assert not reuse.answers
