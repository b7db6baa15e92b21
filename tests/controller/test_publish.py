"""A policy becomes the next publication; everything else of the publication stays."""

from controller.publish import published
from router.current import Current
from router.policy import Policy, Publication, Weights
from router.turn import NodeId

FIRST, SECOND, CANARY = (Policy(n, {}, Weights(1, n)) for n in (1, 2, 3))
BEFORE = Publication(4, {"main": FIRST, "canary": CANARY}, {NodeId("D1"): "canary"}, {NodeId("D0"): 0.05}, "salt", 2.5)


def test_the_main_arm_is_replaced_and_the_version_rises_by_one():
    after = published(BEFORE, SECOND)
    assert after.version == 5 and after.arms == {"main": SECOND, "canary": CANARY}


def test_arms_of_nodes_dither_salt_and_rate_stay():
    after = published(BEFORE, SECOND)
    assert (after.node_arm, after.node_dither, after.salt, after.fleet_qps) == (
        BEFORE.node_arm,
        BEFORE.node_dither,
        BEFORE.salt,
        BEFORE.fleet_qps,
    )
    assert after.policy_for(NodeId("D0")) is SECOND and after.policy_for(NodeId("D1")) is CANARY


def test_the_publication_before_is_not_changed():
    published(BEFORE, SECOND)
    assert BEFORE.version == 4 and BEFORE.arms["main"] is FIRST


def test_a_router_takes_the_next_publication_and_ignores_an_old_one():
    current = Current(BEFORE)
    after = published(BEFORE, SECOND)
    assert current.swap(after) and current.publication is after
    assert not current.swap(BEFORE) and current.publication is after
