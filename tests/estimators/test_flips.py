"""Expected lengths judged by the decisions that they turn, on the tables that ship."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from estimators.length import LengthEstimator
from router.features import TurnFeatures
from tests.estimators.flips import Flips, flips
from tests.router.samples import features
from trimtab.shipped import shipped

APPS = {"extraction": (40, 512), "chat": (250, 60), "reasoning": (900, 40)}
"""Median reply and median new input, in tokens."""


@cache
def traffic(expect: str, conversations: int = 600) -> list[tuple[TurnFeatures, float, float]]:
    """Later turns of three applications on one model; conversations differ by half a nat, and so do their replies."""
    dice, lengths, cases = np.random.default_rng(1), LengthEstimator(), []
    for _ in range(conversations):
        app = list(APPS)[dice.integers(3)]
        reply, new = APPS[app]
        usual, state, context = math.log(reply) + dice.normal(0.0, 0.5), None, 0
        for turn in range(int(dice.integers(2, 7))):
            true, n_in = (max(1, round(float(np.exp(dice.normal(mean, 0.5))))) for mean in (usual, math.log(new)))
            expected = {
                "constant": 256.0,
                "model": lengths.expected_tokens("m", None),
                "conversation": lengths.expected_tokens("m", state),
                "application": lengths.expected_tokens("m", state, app=app),
            }[expect]
            if turn:
                turn_seen = features(n_ctx=context, n_in=n_in, qps=float(dice.choice([4, 8, 16])))
                cases.append((turn_seen, expected, float(true)))
            state = lengths.update("m", state, true, app)
            context += n_in + true
    return cases


@pytest.mark.parametrize(
    "artefact", shipped(), ids=lambda artefact: f"{artefact.origin.model}-{artefact.origin.topology}"
)
def test_on_the_papers_table_the_conversation_and_the_application_each_save_flips(artefact):
    table = artefact.tables().paper
    assert table is not None

    def decide(turn: TurnFeatures, n_out: int) -> bool:
        return table.choose(replace(turn, n_out=n_out), 1.0, 1.0)[0]

    constant, model, conversation, application = (
        flips(traffic(expect), decide).share or 0.0 for expect in ("constant", "model", "conversation", "application")
    )
    assert 0.0 < application < conversation < min(constant, model)
    assert application < 0.6 * constant


@pytest.mark.parametrize(
    "artefact", shipped(), ids=lambda artefact: f"{artefact.origin.model}-{artefact.origin.topology}"
)
def test_the_load_aware_table_does_not_ask_for_the_length_of_a_reply(artefact):
    found = flips(traffic("constant"), lambda turn, n_out: artefact.table.score(replace(turn, n_out=n_out)))
    assert found.turns > 1000 and found.flipped == 0


def test_decisions_are_counted_on_whole_tokens():
    found = flips([("a", 99.6, 100.0), ("b", 99.4, 100.0), ("c", 0.0, 1.0)], lambda turn, n_out: n_out >= 100)
    assert found == Flips(3, 1)
    assert found.share == pytest.approx(1 / 3)


def test_no_turns_have_no_share():
    assert flips([], lambda turn, n_out: n_out).share is None
