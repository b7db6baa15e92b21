"""Ask a pair of engines, or compare two sheets. See the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

from . import documented
from .emulated import emulated_sheet
from .faults import FAULTS
from .sheet import ask, differences, dump, fields, kill, load, markdown


def main() -> None:
    given = _parser().parse_args()
    if given.command == "ask":
        second = (given.prefill, given.recompute) if given.recompute else None
        nonce = random.SystemRandom().randrange(10**6)
        sheet = asyncio.run(ask(given.prefill, given.decode, recompute=second, lease_s=given.lease_s, nonce=nonce))
        given.json.write_text(dump(sheet), encoding="utf-8")
        print(f"{len(sheet)} questions, {len(fields(sheet))} fields")
    elif given.command == "kill":
        print(dump({given.fault: asyncio.run(kill(given.prefill, given.decode, given.fault))}), end="")
    elif given.command == "emulate":
        given.json.write_text(dump(asyncio.run(emulated_sheet(nonce=1))), encoding="utf-8")
    else:
        _compare(given.one, given.other, given.markdown, given.fields)


def _compare(first: Path, second: Path, table: Path | None, listed: Path | None) -> None:
    one, other = load(first), load(second)
    found = differences(one, other)
    report = markdown(found, len(fields(one).keys() | fields(other).keys()), first.stem, second.stem)
    if table is not None:
        table.write_text(report, encoding="utf-8")
    if listed is not None:
        listed.write_text(documented.dump(found), encoding="utf-8")
    print(report.partition("\n")[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance_face")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", help="ask a P and a D everything that no engine dies of")
    killing = commands.add_parser("kill", help="ask a D what ends its engine; start it again after each")
    for each in (asking, killing):
        each.add_argument("--prefill", required=True, metavar="URL")
        each.add_argument("--decode", required=True, metavar="URL")
    asking.add_argument("--json", required=True, type=Path, metavar="FILE")
    asking.add_argument(
        "--recompute", metavar="URL", help="another D, of kv_load_failure_policy=recompute, for bad hand-overs again"
    )
    asking.add_argument("--lease-s", type=float, default=30.0, help="their kv_lease_duration (default: 30)")
    killing.add_argument("fault", choices=[fault.name for fault in FAULTS if fault.kills])
    playing = commands.add_parser("emulate", help="ask an emulated pair of each policy everything")
    playing.add_argument("--json", required=True, type=Path, metavar="FILE")
    comparing = commands.add_parser("compare", help="two sheets, field by field")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument("--markdown", type=Path, metavar="FILE", help="write the differences as a table")
    comparing.add_argument("--fields", type=Path, metavar="FILE", help="write them as differences.json has them")
    return parser


if __name__ == "__main__":
    main()
