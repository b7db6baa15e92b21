"""One function over many items on several cores: results in the items' order, progress as they come.

What runs must be a function of its item, so that where it runs does not matter. Scenarios, which may also run on a
cluster and be broken off, have `trimtab/runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import joblib

Item = TypeVar("Item")
Done = TypeVar("Done")
MANY, BATCH = 300, 4
"""From so many items on a core takes a few at a time."""


def on_cores(
    one: Callable[[Item], Done],
    items: Iterable[Item],
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Done]:
    """`one` of each item, on `jobs` processes or, with one, in this. `progress(done, total)` after each."""
    todo = list(items)
    pool = joblib.Parallel(n_jobs=max(1, jobs), return_as="generator", batch_size=1 if len(todo) < MANY else BATCH)
    found: list[Done] = []
    for done in pool(joblib.delayed(one)(item) for item in todo):
        found.append(done)
        progress(len(found), len(todo))
    return found
