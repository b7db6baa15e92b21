"""`python -m tests.fuzz TARGET... --seconds N --out FOLDER`: atheris on the targets, one after the other, each in a
process of its own.

What a target is found to do wrong stays in FOLDER as a file of bytes: it becomes an entry of `FOUND` in
`test_targets.py`, and is mended. The corpus stays in FOLDER too, and the next run goes on from it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

MAX_INPUT_BYTES = 2048


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="which; all without")
    parser.add_argument("--seconds", type=int, default=480, help="for each")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _run(given.one, given.seconds, given.out)
        return 0
    from .targets import TARGETS

    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    failed = []
    for name in given.targets or TARGETS:
        print(f"{name}: {given.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--seconds", str(given.seconds)]
        ended = subprocess.run([*command, "--out", str(given.out)], check=False)
        if ended.returncode:
            failed.append(name)
    print(f"found something: {', '.join(failed)}; see {given.out}" if failed else "nothing found")
    return 1 if failed else 0


def _run(name: str, seconds: int, out: Path) -> None:
    import atheris

    # Only what is fuzzed is looked into: the libraries beneath would take most of the time.
    with atheris.instrument_imports(include=["router", "slos", "trimtab.settings", "trimtab.addresses", "yaml"]):
        from .targets import SEEDS, TARGETS

    corpus = out / name
    corpus.mkdir(parents=True, exist_ok=True)
    for at, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{at}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        "-rss_limit_mb=2048",
        "-timeout=20",
        f"-artifact_prefix={out}/{name}-",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
