"""What a router process starts from."""

from __future__ import annotations

import json
from pathlib import Path

from router.outbox import LastPublication, TableCache
from router.policy import Policy, Publication, Weights
from router.wire import publication_to_wire
from trimtab.router_process import _first_publication
from trimtab.settings import Settings


def test_what_an_earlier_start_published_does_not_act_where_this_one_is_pinned_or_observes(tmp_path: Path) -> None:
    kept = Publication(7, {"main": Policy(7, {}, Weights.from_price(0.2)), "other": Policy(7, {}, Weights(1, 1))})
    cache = TableCache(tmp_path)
    last = LastPublication(tmp_path, cache)
    last.save(json.loads(json.dumps(publication_to_wire(kept, {}))))
    plain = Settings(decode=("http://127.0.0.1:1",), state_dir=str(tmp_path))
    assert _first_publication(plain.checked(), cache, last) == kept
    observing = Settings(decode=plain.decode, state_dir=plain.state_dir, observe=True).checked()
    found = _first_publication(observing, cache, last)
    assert found.version == 7, "so that the control process's next one is taken"
    assert [policy.pin_x for policy in found.arms.values()] == [0.0, 0.0]
