"""Weights, policies and publications: validity, identity, and which of them a turn acts on."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.current import Current
from router.policy import ANY_MODEL, Policy, Publication, TableKey, Weights
from tests.router.samples import D0, D1, MODEL, TOPOLOGY, policy, tables


@pytest.mark.parametrize(
    ("price", "pair"), [(1.0, (1.0, 1.0)), (0.0, (2.0, 0.0)), (0.25, (1.6, 0.4)), (3.0, (0.5, 1.5))]
)
def test_a_price_is_published_as_weights_that_sum_to_2(price: float, pair: tuple[float, float]):
    weights = Weights.from_price(price)
    assert (weights.w_ttft, weights.w_tpot) == pytest.approx(pair)
    assert weights.price == pytest.approx(price)


def test_without_a_weight_on_ttft_the_price_is_infinite():
    assert Weights(0, 1).price == inf


@given(price=st.floats(0, 1e6))
def test_price_to_weights_and_back_is_the_price(price):
    weights = Weights.from_price(price)
    assert weights.w_ttft + weights.w_tpot == pytest.approx(2.0)
    assert weights.price == pytest.approx(price)


@pytest.mark.parametrize("pair", [(0, 0), (-1, 1), (1, -1), (nan, 1), (1, nan), (inf, 1), (1, inf), (-0.0, 0.0)])
def test_weights_that_mean_nothing_are_refused(pair: tuple[float, float]):
    with pytest.raises(ValueError, match="weights must be finite"):
        Weights(*pair)


@pytest.mark.parametrize("price", [-1.0, -0.1, nan, inf])
def test_a_price_that_is_no_price_is_refused(price: float):
    with pytest.raises(ValueError, match="a price must be"):
        Weights.from_price(price)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "other"}, "mode must be load_aware or paper"),
        ({"pin_x": -0.1}, "pin_x is a share"),
        ({"pin_x": 1.1}, "pin_x is a share"),
        ({"pin_x": nan}, "pin_x is a share"),
        ({"explore": 0.51}, "explore must be within"),
        ({"explore": -0.01}, "explore must be within"),
        ({"explore": nan}, "explore must be within"),
        ({"kv_guard": 0.0}, "kv_guard is a share"),
        ({"kv_guard": 1.01}, "kv_guard is a share"),
        ({"kv_guard": nan}, "kv_guard is a share"),
        ({"without_table_tokens": -1}, "without_table_tokens is .* whole number, 0 .*; got -1"),
        ({"without_table_tokens": 1024.0}, "without_table_tokens is .* whole number"),
        ({"without_table_tokens": True}, "without_table_tokens is .* whole number"),
        ({"without_table_tokens": None}, "without_table_tokens is .* whole number"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(changes, message: str):
    with pytest.raises(ValueError, match=message):
        policy(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"pin_x": 0.0},
        {"pin_x": 1.0},
        {"explore": 0.5},
        {"kv_guard": 1.0},
        {"without_table_tokens": 0},
        {"mode": "paper"},
    ],
)
def test_the_ends_of_every_range_are_allowed(changes):
    policy(**changes)


def test_a_policy_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        policy().version = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 8},
        {"weights": Weights(1, 2)},
        {"model_weights": {MODEL: Weights(1, 1)}},
        {"mode": "paper"},
        {"pin_x": 0.5},
        {"pin_x": 0.0},
        {"explore": 0.01},
        {"kv_guard": 0.9},
        {"without_table_tokens": 0},
        {"without_table_tokens": 1025},
        {"provenance": "by hand"},
        {"format": 1},
        {"tables": {}},
        {"tables": {TableKey(MODEL, TOPOLOGY): tables(digest="d2")}},
        {"tables": {TableKey(MODEL, "1P_2D"): tables()}},
        {"tables": {TableKey("other", TOPOLOGY): tables()}},
    ],
)
def test_whatever_changes_changes_the_checksum(changes):
    assert policy(**changes).sha256 != policy().sha256


def test_equal_content_has_an_equal_checksum():
    assert policy().sha256 == policy().sha256
    assert replace(policy(version=9), version=7).sha256 == policy().sha256
    assert len(policy().sha256) == 64


@given(order=st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_a_dict_is_no_content(order):
    def built(names):
        return policy(
            tables={TableKey(name, topology): tables(digest=name) for name in names for topology in ("1P_2D", "2P_2D")},
            model_weights={name: Weights(1, ord(name)) for name in names},
        )

    assert built(order).sha256 == built("abcd").sha256


def test_a_model_may_have_weights_of_its_own():
    own = policy(model_weights={MODEL: Weights(0.5, 1.5)})
    assert own.weights_for(MODEL) == Weights(0.5, 1.5)
    assert own.weights_for("other") == own.weights


def several(*topologies: str, model: str = MODEL) -> Policy:
    return policy(tables={TableKey(model, topology): tables(digest=topology) for topology in topologies})


def nearest(held: Policy, topology: str) -> tuple[str, bool] | None:
    found = held.table(MODEL, topology)
    return None if found is None else (found[0].digest, found[1])


def test_the_table_of_this_topology_is_exact():
    assert nearest(several("2P_2D", "1P_2D"), "1P_2D") == ("1P_2D", True)


@pytest.mark.parametrize(
    ("asked", "expected"), [("1P_1D", "1P_2D"), ("3P_2D", "2P_2D"), ("2P_5D", "2P_6D"), ("2D", "1P_2D"), ("", "1P_2D")]
)
def test_another_topology_takes_the_one_with_the_fewest_nodes_of_difference_and_says_so(asked: str, expected: str):
    assert nearest(several("1P_2D", "2P_2D", "2P_6D"), asked) == (expected, False)


def test_ten_nodes_are_more_than_one():
    assert nearest(several("1P_2D", "10P_2D"), "11P_2D") == ("10P_2D", False)
    assert nearest(several("1P_2D", "10P_2D"), "2P_2D") == ("1P_2D", False)


def test_between_two_that_are_equally_near_the_order_of_loading_does_not_decide():
    assert nearest(several("1P_2D", "3P_2D"), "2P_2D") == nearest(several("3P_2D", "1P_2D"), "2P_2D")


@pytest.mark.parametrize("odd", ["", "x", "P", "_", "²P_2D", "one P"])
def test_a_topology_that_is_none_is_only_ever_near(odd: str):
    assert nearest(several("2P_2D"), odd) == ("2P_2D", False)
    assert nearest(several(odd, "2P_2D"), "1P_2D") == ("2P_2D", False)


def test_another_models_table_is_no_table():
    assert nearest(several("2P_2D", model="other"), "2P_2D") is None
    assert policy().latency("other", TOPOLOGY) is None


def test_a_table_for_any_model_stands_in_where_the_model_has_none_of_its_own():
    anyones = {TableKey(ANY_MODEL, "2P_2D"): tables(digest="any")}
    assert nearest(policy(tables=anyones), "2P_2D") == ("any", True)
    assert nearest(policy(tables={**anyones, TableKey(MODEL, "1P_2D"): tables(digest="own")}), "2P_2D") == (
        "own",
        False,
    )


def test_the_latency_model_is_that_of_the_table_in_use():
    held = several("1P_2D", "2P_2D")
    found = held.table(MODEL, "9P_9D")
    assert found is not None
    assert held.latency(MODEL, "9P_9D") is found[0].load_aware.model


def test_a_publication_without_a_main_arm_is_refused():
    with pytest.raises(ValueError, match="needs an arm named 'main'"):
        Publication(1, {"canary": policy()})


def test_a_node_on_an_arm_that_does_not_exist_is_refused_by_the_arms_name():
    with pytest.raises(ValueError, match="do not exist: blue, green"):
        Publication(1, {"main": policy()}, {D0: "green", D1: "blue"})


def test_a_node_acts_on_its_arm_and_every_other_node_on_main():
    main, canary = policy(), policy(version=8)
    publication = Publication(1, {"main": main, "canary": canary}, {D1: "canary"})
    assert publication.policy_for(D1) is canary
    assert publication.policy_for(D0) is main


def publication(version: int, **changes) -> Publication:
    return Publication(version, {"main": policy(version=version, **changes)})


def test_a_newer_publication_is_taken_and_an_older_or_equal_one_ignored():
    current = Current(publication(5))
    for version, taken in ((4, False), (5, False), (6, True), (5, False), (9, True)):
        assert current.swap(publication(version)) is taken
    assert current.publication.version == 9


def test_a_reader_keeps_what_it_took_when_the_publication_is_swapped():
    current = Current(publication(1))
    held = current.publication
    current.swap(publication(2))
    assert held.version == 1


def test_a_pin_overrides_every_arm_until_it_is_lifted():
    published = Publication(3, {"main": policy(), "canary": policy(version=8)}, {D1: "canary"})
    current = Current(published)
    current.pin(0.0)
    assert [current.publication.policy_for(node).pin_x for node in (D0, D1)] == [0.0, 0.0]
    assert current.publication.version == 3
    current.pin(None)
    assert current.publication is published


def test_a_pin_outlives_a_swap_and_does_not_stop_it():
    current = Current(publication(1))
    current.pin(1.0)
    assert current.swap(publication(2, explore=0.1))
    assert not current.swap(publication(2))
    assert (current.publication.version, current.publication.arms["main"].pin_x) == (2, 1.0)
    current.pin(None)
    assert current.publication.arms["main"] == policy(version=2, explore=0.1)
