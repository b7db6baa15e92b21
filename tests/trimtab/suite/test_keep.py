"""Kept runs: read in the place of a run of the same job by the same code, and of no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.runs import Job, Run, run_one
from trimtab.suite import keep
from trimtab.suite.catalogue import CATALOGUE
from trimtab.suite.keep import keep_in

JOB = Job(CATALOGUE["p_failure"].scenario.lasting(30), "price_0.4", 200)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were really run."""
    ran: list[Job] = []

    def run(job: Job) -> Run:
        ran.append(job)
        return run_one(job)

    monkeypatch.setattr(keep, "run_one", run)
    return ran


def test_a_run_that_is_kept_is_not_run_again_and_is_the_same(tmp_path: Path, counted: list[Job]):
    first = keep_in(tmp_path)(JOB)
    assert keep_in(tmp_path)(JOB) == first
    assert counted == [JOB]


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, seed=201),
        replace(JOB, policy="x0"),
        replace(JOB, keep_ticks=True),
        replace(JOB, scenario=replace(JOB.scenario, told_share=0.5)),
    ],
)
def test_another_job_is_run(tmp_path: Path, counted: list[Job], other: Job):
    kept = keep_in(tmp_path)
    kept(JOB)
    kept(other)
    assert counted == [JOB, other]


def test_other_code_finds_nothing(tmp_path: Path, counted: list[Job], monkeypatch: pytest.MonkeyPatch):
    keep_in(tmp_path)(JOB)
    sources = [*keep._sources()]
    monkeypatch.setattr(keep, "_sources", lambda: [*sources[1:]])
    keep_in(tmp_path)(JOB)
    assert counted == [JOB, JOB]


def test_a_file_that_was_cut_off_is_run_again(tmp_path: Path, counted: list[Job]):
    kept = keep_in(tmp_path)
    first = kept(JOB)
    (file,) = kept.folder.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert kept(JOB) == first
    assert counted == [JOB, JOB]
