"""Jobs: one run at a time, no catch-up, errors and overruns counted, and a watchdog on another clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from controller.scheduler import Job, Scheduler


def run_for(scheduler: Scheduler, seconds: float) -> None:
    async def scene() -> None:
        scheduler.start()
        await asyncio.sleep(seconds)
        await scheduler.stop()

    asyncio.run(scene())


def test_a_job_runs_at_once_and_then_every_interval() -> None:
    runs: list[float] = []

    async def run() -> None:
        runs.append(time.monotonic())

    scheduler = Scheduler([Job("a", 0.1, run)])
    run_for(scheduler, 0.45)
    assert 2 <= len(runs) <= 6
    assert scheduler.stats["a"].runs == len(runs)


def test_errors_are_counted_and_the_job_goes_on() -> None:
    async def run() -> None:
        raise RuntimeError("no")

    scheduler = Scheduler([Job("a", 0.05, run)])
    run_for(scheduler, 0.3)
    stats = scheduler.stats["a"]
    assert stats.errors == stats.runs >= 2 and stats.last_error == "RuntimeError: no"


def test_a_run_longer_than_its_interval_has_no_second_one_beside_it() -> None:
    running, most = 0, 0

    async def run() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.2)
        running -= 1

    scheduler = Scheduler([Job("a", 0.05, run)])
    run_for(scheduler, 0.5)
    assert most == 1 and scheduler.stats["a"].missed >= 1


def test_a_run_is_given_up_after_its_limit() -> None:
    async def run() -> None:
        await asyncio.sleep(10)

    scheduler = Scheduler([Job("a", 0.1, run, timeout_s=0.05)])
    run_for(scheduler, 0.3)
    assert scheduler.stats["a"].timeouts >= 1


def test_a_stall_of_the_loop_is_not_caught_up() -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1

    async def scene() -> None:
        scheduler = Scheduler([Job("a", 0.05, run)])
        scheduler.start()
        await asyncio.sleep(0.01)
        time.sleep(0.5)
        await asyncio.sleep(0.02)
        await scheduler.stop()

    asyncio.run(scene())
    assert runs <= 3


def test_the_watchdog_runs_what_the_scheduler_does_not() -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1

    async def scene() -> Scheduler:
        scheduler = Scheduler([Job("tick", 0.05, run, watched=True), Job("other", 0.05, run)])
        scheduler.start()
        await asyncio.sleep(0)
        assert scheduler._scheduler is not None
        scheduler._scheduler.pause()  # as a wall clock set back would do
        await asyncio.sleep(0.6)
        assert scheduler.stats["tick"].rescued >= 1 and scheduler.stats["other"].rescued == 0
        await scheduler.stop()
        return scheduler

    scheduler = asyncio.run(scene())
    assert scheduler.stats["tick"].runs >= 1
    assert scheduler.late(time.monotonic() + 10) == ["tick"]


def test_jobs_can_be_added_as_tuples_and_later_but_not_twice() -> None:
    runs: list[str] = []

    async def run() -> None:
        runs.append("x")

    async def scene() -> None:
        scheduler = Scheduler()
        scheduler.start()
        scheduler.add(("extra", 0.05, run))
        with pytest.raises(ValueError, match="extra"):
            scheduler.add(("extra", 0.05, run))
        await asyncio.sleep(0.12)
        await scheduler.stop()

    asyncio.run(scene())
    assert runs
    with pytest.raises(ValueError, match="interval_s"):
        Job("bad", 0.0, run)
