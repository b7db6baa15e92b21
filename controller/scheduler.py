"""The jobs of the control process: APScheduler, set up so that nothing piles up, and a watchdog beside it.

Every job has one run at a time, no catch-up after a stall, and a time limit; whatever it raises is logged and counted,
and it runs again. APScheduler plans by the wall clock, so a clock set back would silence it until time has caught up:
the watchdog looks at the monotonic clock, and runs the watched job itself when that has not run for three intervals.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler

log = logging.getLogger("trimtab.scheduler")

LATE_INTERVALS = 3
MIN_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do every `interval_s`, at first at once. A run is given up after `timeout_s` (default: the interval,
    but at least a second). A job with work for the CPU or a disk hands it to a thread itself."""

    name: str
    interval_s: float
    run: Callable[[], Awaitable[object]]
    timeout_s: float | None = None
    watched: bool = False
    """The watchdog runs it when the scheduler does not."""

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < float("inf"):
            raise ValueError(f"job {self.name}: interval_s must be > 0, got {self.interval_s}")


@dataclass(slots=True)
class JobStats:
    """How one job has fared; times are of the monotonic clock."""

    interval_s: float
    started_s: float
    """When it was last run, or else added."""
    runs: int = 0
    errors: int = 0
    timeouts: int = 0
    missed: int = 0
    """Runs left out because the last one was still going, or too late."""
    rescued: int = 0
    """Runs by the watchdog."""
    seconds: float = 0.0
    """Spent in runs."""
    last_error: str = ""

    def late(self, now_s: float) -> bool:
        """It has not run for three intervals."""
        return now_s - self.started_s > LATE_INTERVALS * self.interval_s


@dataclass(slots=True)
class _Entry:
    job: Job
    stats: JobStats
    running: bool = field(default=False)


class Scheduler:
    """Jobs of one event loop: `start` in it, `stop` in it."""

    def __init__(self, jobs: Iterable[Job] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._scheduler: AsyncIOScheduler | None = None
        self._watchdog: asyncio.Task[None] | None = None
        for job in jobs:
            self.add(job)

    @property
    def stats(self) -> dict[str, JobStats]:
        """By name of the job."""
        return {name: entry.stats for name, entry in self._entries.items()}

    def late(self, now_s: float) -> list[str]:
        """Watched jobs that have not run for three intervals."""
        return [name for name, e in self._entries.items() if e.job.watched and e.stats.late(now_s)]

    def add(self, job: Job | tuple[str, float, Callable[[], Awaitable[object]]]) -> None:
        """One more job (or its name, interval and what to do), before or after the start. Raises ValueError for a name
        twice."""
        if isinstance(job, tuple):
            job = Job(*job)
        if job.name in self._entries:
            raise ValueError(f"there is a job {job.name} already")
        self._entries[job.name] = _Entry(job, JobStats(job.interval_s, self._clock()))
        if self._scheduler is not None:
            self._plan(job)

    def start(self) -> None:
        """Begin, on the running event loop."""
        logging.getLogger("apscheduler").setLevel(
            logging.ERROR
        )  # it warns of every run left out: these are counted here
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        self._scheduler.add_listener(self._left_out, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        for entry in self._entries.values():
            entry.stats.started_s = self._clock()
            self._plan(entry.job)
        self._scheduler.start()
        self._watchdog = asyncio.create_task(self._watch(), name="watchdog")

    async def stop(self) -> None:
        """End; runs that are under way are cancelled."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            await asyncio.gather(self._watchdog, return_exceptions=True)
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=True)  # cancels what runs, it does not wait for it
            await asyncio.sleep(0)
        self._scheduler = self._watchdog = None

    def _plan(self, job: Job) -> None:
        assert self._scheduler is not None
        self._scheduler.add_job(
            self._run,
            "interval",
            args=(job.name,),
            seconds=job.interval_s,
            id=job.name,
            next_run_time=datetime.now(UTC),
        )

    def _left_out(self, event: JobExecutionEvent) -> None:
        entry = self._entries.get(event.job_id)
        if entry is not None:
            entry.stats.missed += 1

    async def _run(self, name: str) -> None:
        entry = self._entries[name]
        if entry.running:  # the watchdog is at it
            entry.stats.missed += 1
            return
        job, stats = entry.job, entry.stats
        limit_s = max(MIN_TIMEOUT_S, job.interval_s) if job.timeout_s is None else job.timeout_s
        entry.running = True
        begun_s = stats.started_s = self._clock()
        stats.runs += 1
        try:
            async with asyncio.timeout(limit_s) as limit:
                await job.run()
        except TimeoutError as error:
            if limit.expired():
                stats.timeouts += 1
                stats.last_error = f"gave up after {limit_s:g} s"
                log.error("job %s: %s", name, stats.last_error)
            else:
                self._went_wrong(name, stats, error)
        except Exception as error:
            self._went_wrong(name, stats, error)
        finally:
            entry.running = False
            stats.seconds += self._clock() - begun_s

    @staticmethod
    def _went_wrong(name: str, stats: JobStats, error: Exception) -> None:
        stats.errors += 1
        text = f"{type(error).__name__}: {error}"
        if text != stats.last_error:  # the same again is counted, not logged
            log.exception("job %s went wrong", name)
        stats.last_error = text

    async def _watch(self) -> None:
        watched = [entry for entry in self._entries.values() if entry.job.watched]
        pause_s = min((entry.job.interval_s for entry in watched), default=60.0)
        while True:
            await asyncio.sleep(pause_s)
            for entry in watched:
                if entry.stats.late(self._clock()) and not entry.running:
                    log.error("job %s has not run for %d intervals: running it now", entry.job.name, LATE_INTERVALS)
                    entry.stats.rescued += 1
                    await self._run(entry.job.name)
