"""The headline scenario on an engine core that this project did not write: vLLM's V1 scheduler, in virtual time.

    PYTHON benchmarks/vllm_scheduler.py --check               small cases on both engines, as JSON
    PYTHON benchmarks/vllm_scheduler.py --cross [--seeds 200] the first phase of H1: TTFT and TPOT on both
    PYTHON benchmarks/vllm_scheduler.py [POLICY ...] [--seeds 200,201] [--scenario H4] [--json FILE]

PYTHON is the engines' own, `.vllm/venv/bin/python`: `trimtab engines install` makes it. It lacks some of Trimtab's
dependencies; those are taken from `.venv` of this checkout, or from the site-packages that `--also DIR` names, behind
all that vLLM brings. Both must be of one Python version.

What runs, what is cached, evicted or preempted, and how prompts are cut is vLLM's own code (`vllm_engine.py`); how long
a step, a transfer and the HTTP front take is the emulator's. So this judges the mechanics of our engine, not its
constants. Nothing is tuned here. `--json` is written after every run, and runs that it has already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

CHECKOUT = Path(__file__).resolve().parents[1]
POLICIES = ("controller", "price_0.4", "threshold_2048", "threshold_4096", "dynamo", "x0", "x1", "paper_table")
CROSSED = ("x0", "x1", "price_0.4")
SEEDS = "200,201"
TELL_S = 100.0
"""Virtual seconds between two lines of progress."""


def find(also: Path | None) -> None:
    """The checkout before all, our dependencies behind all."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    also = also or CHECKOUT / ".venv" / "lib" / python / "site-packages"
    if not also.is_dir():
        raise SystemExit(f"{also} is no folder; name the site-packages of a Trimtab installation with --also")
    sys.path.insert(0, str(CHECKOUT))
    sys.path.append(str(also))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", metavar="POLICY", help=f"default: {' '.join(POLICIES)}")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cross", action="store_true")
    parser.add_argument("--scenario", default="H4")
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--also", type=Path, metavar="DIR")
    return parser.parse_args()


given = parsed()
find(given.also)

import vllm  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from vllm_engine import VllmEngine  # noqa: E402

from emulator.engine import Engine  # noqa: E402
from emulator.events import Events  # noqa: E402
from emulator.fleet import EngineMaker, Fleet, Reply, Request  # noqa: E402
from emulator.prefix_cache import Prompt  # noqa: E402
from emulator.profiles import PROFILES, EngineProfile  # noqa: E402
from estimators.quantile import nearest_rank  # noqa: E402
from slos.objective import Outcome  # noqa: E402
from trimtab.console import commit  # noqa: E402
from trimtab.runs import Job, judged, simulated  # noqa: E402
from trimtab.scenarios import SCENARIOS, Scenario  # noqa: E402
from trimtab.simulate import Simulation  # noqa: E402

SOURCE = f"vLLM {vllm.__version__}'s scheduler in virtual time, emulated step times"
ENGINES = ("vllm", "emulator")
CHECKED = PROFILES["llama-3.1-70b-h100-tp4"]


def provenance(seeds: Sequence[int]) -> dict[str, object]:
    return {
        "source": SOURCE,
        "command": shlex.join(["python", "benchmarks/vllm_scheduler.py", *sys.argv[1:]]),
        "commit": commit(),
        "seeds": list(seeds),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "vllm": vllm.__version__,
    }


# -- small cases -------------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """One request to one node, and what its caller saw."""

    sent_s: float
    output_tokens: int
    first_s: float | None = None
    done_s: float | None = None
    failed_s: float | None = None
    reply: Reply | None = None

    @property
    def ttft_ms(self) -> float:
        assert self.first_s is not None
        return (self.first_s - self.sent_s) * 1e3

    @property
    def tpot_ms(self) -> float:
        assert self.first_s is not None and self.done_s is not None
        return (self.done_s - self.first_s) * 1e3 / (self.output_tokens - 1)


class Bench:
    """A fleet, and requests by hand."""

    def __init__(self, notation: str, maker: EngineMaker, profile: EngineProfile = CHECKED) -> None:
        self.events = Events()
        self.fleet = Fleet(notation, profile, self.events, make=maker)
        self._asked = 0

    def ask(self, node: str, prompt: Prompt, output_tokens: int, params: dict[str, object] | None = None) -> Asked:
        self._asked += 1
        asked = Asked(self.events.now_s, output_tokens)

        def first(at_s: float) -> None:
            asked.first_s = at_s

        def done(at_s: float, reply: Reply) -> None:
            asked.done_s, asked.reply = at_s, reply

        def failed(at_s: float, _status: int) -> None:
            asked.failed_s = at_s

        request = Request(f"r{self._asked}", prompt, output_tokens, params)
        self.fleet.call(node, request, first, done, failed)
        return asked

    def wait(self, seconds: float) -> None:
        self.events.run(self.events.now_s + seconds)


def alone(maker: EngineMaker) -> dict[str, float]:
    """One request, then the next turn of its conversation on the same node."""
    bench = Bench("1P_1D", maker)
    one = bench.ask("D0", (("talk", 6000),), 100)
    bench.wait(60.0)
    two = bench.ask("D0", (("talk", 6600),), 100)
    bench.wait(60.0)
    assert two.reply is not None
    return {
        "alone, TTFT, ms": one.ttft_ms,
        "alone, TPOT, ms": one.tpot_ms,
        "prefix hit, tokens": float(two.reply.cached_tokens),
        "prefix hit, TTFT, ms": two.ttft_ms,
        "prefix hit, TPOT, ms": two.tpot_ms,
    }


def handed_over(maker: EngineMaker) -> dict[str, float]:
    """Two turns of a conversation, both prefilled on P: D pulls all of the first and what it lacks of the second."""
    bench = Bench("1P_1D", maker)
    found: dict[str, float] = {}
    for name, tokens in (("first turn", 7000), ("second turn", 9000)):
        prompt = (("talk", tokens),)
        before = bench.fleet.transferred_tokens
        prefill = bench.ask("P0", prompt, 100, {"do_remote_decode": True})
        bench.wait(20.0)
        assert prefill.reply is not None and prefill.done_s is not None
        held = bench.fleet.engines["P0"].kv_usage
        turn = bench.ask("D0", prompt, 100, prefill.reply.kv_transfer_params)
        bench.wait(60.0)
        found |= {
            f"{name}, P's cached tokens": float(prefill.reply.cached_tokens),
            f"{name}, P's leg, ms": (prefill.done_s - prefill.sent_s) * 1e3,
            f"{name}, P's memory under lease, tokens": held * CHECKED.kv_capacity_tokens,
            f"{name}, tokens pulled": float(bench.fleet.transferred_tokens - before),
            f"{name}, TTFT on D, ms": turn.ttft_ms,
            f"{name}, TPOT on D, ms": turn.tpot_ms,
            f"{name}, leases left": float(bench.fleet.open_leases),
            f"{name}, P's memory after it, tokens": bench.fleet.engines["P0"].kv_usage * CHECKED.kv_capacity_tokens,
        }
    found["poisoned reads"] = float(bench.fleet.poisoned_reads)
    return found


def crowded(maker: EngineMaker) -> dict[str, float]:
    """Sixteen answers under way, then a prompt of several steps."""
    bench = Bench("1P_1D", maker)
    short = [bench.ask("D0", ((f"talk {at}", 500),), 400) for at in range(16)]
    bench.wait(2.0)
    long = bench.ask("D0", (("paste", 20_000),), 50)
    bench.wait(60.0)
    return {
        "20,000 tokens beside 16 decodes, TTFT, ms": long.ttft_ms,
        "decodes beside it, TPOT, ms": fmean(each.tpot_ms for each in short),
    }


def lost(maker: EngineMaker) -> dict[str, float]:
    """P dies with a prompt that D is to read: D's request fails, and what it held is free."""
    bench = Bench("1P_1D", maker)
    prefill = bench.ask("P0", (("talk", 7000),), 10, {"do_remote_decode": True})
    bench.wait(20.0)
    assert prefill.reply is not None
    bench.fleet.kill("P0")
    turn = bench.ask("D0", (("talk", 7000),), 10, prefill.reply.kv_transfer_params)
    bench.wait(20.0)
    return {
        "P died, requests failed": float(turn.failed_s is not None),
        "P died, D's memory": bench.fleet.engines["D0"].kv_usage,
    }


def check() -> list[dict[str, object]]:
    cases = (alone, handed_over, crowded, lost)
    real, ours = ([case(maker) for case in cases] for maker in (VllmEngine, Engine))
    return [
        {"what": what, "vllm": round(value, 4), "emulator": round(own[what], 4)}
        for found, own in zip(real, ours, strict=True)
        for what, value in found.items()
    ]


# -- whole runs --------------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """Makes vLLM's engines, keeps them for their counts, and says how far their run is."""

    label: str
    engines: list[VllmEngine] = field(default_factory=list)
    began: float = field(default_factory=time.process_time)

    def __call__(self, name: str, profile: EngineProfile, events: Events) -> VllmEngine:
        if not self.engines:
            events.at(TELL_S, self._tell, events)
        self.engines.append(VllmEngine(name, profile, events))
        return self.engines[-1]

    @property
    def steps(self) -> int:
        return sum(engine.steps_done for engine in self.engines)

    def _tell(self, events: Events) -> None:
        took_s = time.process_time() - self.began
        say(f"{self.label}: {events.now_s:.0f} virtual s, {self.steps} steps, {took_s:.0f} CPU s")
        events.after(TELL_S, self._tell, events)

    def counts(self) -> dict[str, dict[str, float]]:
        return {
            engine.name: {
                "steps": engine.steps_done,
                "tokens": engine.scheduled_tokens,
                "busy_s": round(engine.busy_s, 3),
                "preemptions": engine.preemptions,
                "most_running": engine.most_running,
            }
            for engine in self.engines
        }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(job: Job, engine: str) -> tuple[Simulation, dict[str, dict[str, float]]]:
    if engine == "emulator":
        return simulated(job), {}
    watched = Watched(f"{job.scenario.name} {job.policy} seed {job.seed}")
    return simulated(job, watched), watched.counts()


def play(scenario: Scenario, policies: Sequence[str], seeds: Sequence[int], target: Path | None) -> None:
    document: dict[str, object] = {"provenance": provenance(seeds), "scenario": scenario.name, "runs": []}
    if target is not None and target.exists():
        before = json.loads(target.read_text(encoding="utf-8"))
        if before["scenario"] != scenario.name:
            raise SystemExit(f"{target} holds runs of {before['scenario']}; name another file for {scenario.name}")
        document["runs"] = before["runs"]
    runs: list[dict[str, object]] = document["runs"]  # type: ignore[assignment]
    done = {(each["policy"], each["seed"], each["engine"]): each for each in runs}
    for seed in seeds:
        for policy in policies:
            for engine in ENGINES:
                if (policy, seed, engine) in done:
                    continue
                began = time.process_time()
                job = Job(scenario, policy, seed)
                simulation, counts = run(job, engine)
                entry = _entry(job, engine, simulation, counts, time.process_time() - began)
                say(f"{policy} seed {seed} on {engine}: J {100 * entry['J']:.2f} %, {entry['cpu_s']:.0f} CPU s")
                runs.append(entry)
                done[policy, seed, engine] = entry
                if target is not None:
                    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    table(scenario, policies, seeds, done)


def _entry(
    job: Job, engine: str, simulation: Simulation, counts: dict[str, dict[str, float]], cpu_s: float
) -> dict[str, object]:
    score = judged(job, simulation).score
    return {
        "policy": job.policy,
        "seed": job.seed,
        "engine": engine,
        "J": score.attainment,
        "holds_all": score.holds_all,
        "failures": score.failures,
        "transferred_tokens": simulation.fleet.transferred_tokens,
        "poisoned_reads": simulation.fleet.poisoned_reads,
        "phases": [
            {
                "J": phase.attainment,
                "hold": phase.hold,
                "p99_ttft_ms": phase.p99_ttft_ms,
                "p99_tpot_ms": phase.p99_tpot_ms,
                "local": phase.local_share,
                "later_turns": phase.later_turns,
            }
            for phase in score.phases
        ],
        "engines": counts,
        "cpu_s": round(cpu_s, 1),
    }


def table(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: Sequence[int],
    done: dict[tuple[str, int, str], dict[str, object]],
) -> None:
    shown = Table("policy", "J %, vLLM", "J %, ours", "apart, pp", "holds, phases: vLLM", "ours", "preempted")
    for policy in policies:
        by_engine = {engine: [done[policy, seed, engine] for seed in seeds] for engine in ENGINES}
        j = {engine: fmean(each["J"] for each in found) * 100 for engine, found in by_engine.items()}
        holds = {
            engine: " ".join("".join("+" if phase["hold"] else "-" for phase in each["phases"]) for each in found)
            for engine, found in by_engine.items()
        }
        preempted = sum(node["preemptions"] for each in by_engine["vllm"] for node in each["engines"].values())
        shown.add_row(
            policy,
            f"{j['vllm']:.2f}",
            f"{j['emulator']:.2f}",
            f"{j['vllm'] - j['emulator']:+.2f}",
            holds["vllm"],
            holds["emulator"],
            str(preempted),
        )
    print_with_provenance(shown, seeds, scenario.title)


# -- the first phase of H1 ---------------------------------------------------------------------------------------------


def cross(policies: Sequence[str], seeds: Sequence[int], target: Path | None) -> None:
    whole = SCENARIOS["H1"]
    scenario = replace(whole, phases=whole.phases[:1])
    shown = Table("policy", "what", "vLLM, ms", "ours, ms", "vLLM / ours")
    rows: list[dict[str, object]] = []
    for policy in policies:
        for seed in seeds:
            real, ours = (dict(seen(run(Job(scenario, policy, seed), engine)[0], scenario)) for engine in ENGINES)
            for what, value in real.items():
                rows.append({"policy": policy, "seed": seed, "what": what, "vllm": value, "emulator": ours[what]})
                shown.add_row(policy, what, f"{value:.2f}", f"{ours[what]:.2f}", f"{value / ours[what]:.3f}")
    print_with_provenance(shown, seeds, f"{scenario.title}, first phase")
    if target is not None:
        target.write_text(
            json.dumps({"provenance": provenance(seeds), "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


def seen(simulation: Simulation, scenario: Scenario) -> Iterator[tuple[str, float]]:
    ended = [r for r in simulation.records if r.accepted_s >= scenario.settle_s and r.outcome is Outcome.COMPLETED]
    samples = {
        "TTFT, later turns": [r.ttft_s for r in ended if r.turn > 1 and r.ttft_s is not None],
        "TPOT": [r.tpot_s for r in ended if r.output_tokens >= 8 and r.tpot_s is not None],
    }
    for what, values in samples.items():
        for share in (0.5, 0.99):
            yield f"P{100 * share:g} {what}", nearest_rank(sorted(values), share) * 1e3


def print_with_provenance(shown: Table, seeds: Sequence[int], title: str) -> None:
    shown.title = title
    console = Console(width=130)
    console.print(shown)
    for key, value in provenance(seeds).items():
        console.print(f"{key}: {value}", highlight=False, markup=False)


def main() -> None:
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.check:
        print(json.dumps({"provenance": provenance([]), "rows": check()}, indent=1))
    elif given.cross:
        cross(given.policies or CROSSED, seeds[:1], given.json)
    else:
        play(SCENARIOS[given.scenario], given.policies or POLICIES, seeds, given.json)


if __name__ == "__main__":
    main()
