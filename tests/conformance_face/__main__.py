"""Ask a pair of engines, or compare two sheets. See the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

from .sheet import ask, differences, dump, fields, load, markdown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance_face")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", help="ask a P and a D everything")
    asking.add_argument("--prefill", required=True, metavar="URL")
    asking.add_argument("--decode", required=True, metavar="URL")
    asking.add_argument("--json", required=True, type=Path, metavar="FILE")
    asking.add_argument("--lease-s", type=float, default=30.0, help="their kv_lease_duration (default: 30)")
    comparing = commands.add_parser("compare", help="two sheets, field by field")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument("--markdown", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.command == "ask":
        sheet = asyncio.run(
            ask(given.prefill, given.decode, lease_s=given.lease_s, nonce=random.SystemRandom().randrange(10**6))
        )
        given.json.write_text(dump(sheet), encoding="utf-8")
        print(f"{len(sheet)} questions, {len(fields(sheet))} fields")
        return
    one, other = load(given.one), load(given.other)
    found = differences(one, other)
    compared = len(fields(one).keys() | fields(other).keys())
    report = markdown(found, compared, given.one.stem, given.other.stem)
    if given.markdown is not None:
        given.markdown.write_text(report, encoding="utf-8")
    print(report.partition("\n")[0])


if __name__ == "__main__":
    main()
