"""What all tests share: golden files, the larger data, Hypothesis profiles, and a list of what was left out.

`golden(name, text)` compares text with tests/golden/NAME, or writes it there under `--rewrite-golden`.
`measured_dir` is the folder of measured points and traces that the project does not ship: `TRIMTAB_DATA`, or
`../shared/data` beside the checkout. A test that asks for it skips, with the reason, where there is none.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

CHECKOUT = Path(__file__).resolve().parents[1]
GOLDEN = CHECKOUT / "tests" / "golden"

# CI repeats the same examples every time; by hand new ones are tried.
settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None, print_blob=True)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# A shell's background job ignores Ctrl-C and hands that on: processes that tests start must hear it all the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write the golden files instead of comparing with them"
    )


@pytest.fixture(scope="session")
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    """Whether the golden files are to be written."""
    return bool(request.config.getoption("--rewrite-golden"))


@pytest.fixture
def golden(rewrite_golden: bool) -> Callable[[str, str], None]:
    """Compare a text with a file in tests/golden, or rewrite that file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if rewrite_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"tests/golden/{name} is missing: run `make golden` and review the diff"
        assert text == path.read_text(encoding="utf-8"), f"differs from tests/golden/{name}: see `make golden`"

    return check


@pytest.fixture(scope="session")
def measured_dir() -> Path:
    """The folder of measured data, which lies beside the checkout and is not part of it."""
    named = os.environ.get("TRIMTAB_DATA")
    path = Path(named) if named else CHECKOUT.parent / "shared" / "data"
    if not path.is_dir():
        where = f"TRIMTAB_DATA={named}" if named else "../shared/data"
        pytest.skip(f"no measured data: {where} is not a folder")
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what did not run and why, even if the answer is: nothing."""
    why: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        longrepr = report.longrepr
        why[str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")] += 1
    for report in terminalreporter.stats.get("xfailed", []):
        why[f"expected to fail: {report.wasxfail or 'no reason given'}"] += 1
    terminalreporter.section("left out, and why")
    for reason, count in sorted(why.items()):
        terminalreporter.line(f"{count} x {reason}")
    if config.option.markexpr:
        terminalreporter.line(f'only tests with -m "{config.option.markexpr}" were asked for')
    if not why:
        terminalreporter.line("nothing was skipped")
