"""A real Prometheus and Alertmanager for the tests here; `make test-prom` unpacks them into `.prom` and runs these.

`TRIMTAB_PROM` names the folder. Where it is set the programs have to be there; where it is not, and they are neither in
`.prom` nor on the PATH, these tests skip.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .programs import Programs
from .receiver import Receiver

CHECKOUT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.prom)


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Where the four programs are."""
    named = os.environ.get("TRIMTAB_PROM")
    home = (Path(named) if named else CHECKOUT / ".prom").resolve()
    folder = home / "usr" / "bin"
    search = os.pathsep.join((str(folder), os.environ.get("PATH", "")))
    prometheus, promtool, amtool = (shutil.which(name, path=search) for name in ("prometheus", "promtool", "amtool"))
    alertmanager = shutil.which("prometheus-alertmanager", path=search) or shutil.which("alertmanager", path=search)
    if not (prometheus and promtool and amtool and alertmanager):
        missing = f"prometheus, promtool, amtool and alertmanager are neither in {folder} nor on the PATH"
        if named:
            pytest.fail(f"{missing}: run make test-prom")
        pytest.skip("prometheus, promtool, amtool or alertmanager is missing: run make test-prom")
    return Programs(prometheus, promtool, alertmanager, amtool, home if home.is_dir() else CHECKOUT)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """What a webhook of Alertmanager's posts to."""
    with Receiver() as found:
        yield found
