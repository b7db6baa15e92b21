"""What import-linter cannot see: what a process really loads, package `__init__` files included."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL_OF_ROUTER = """
import importlib, pkgutil, sys
import router
names = [m.name for m in pkgutil.walk_packages(router.__path__, "router.")]
for name in names:
    importlib.import_module(name)
heavy = sorted({"numpy", "scipy"} & set(sys.modules))
assert not heavy, f"router loads {heavy}"
print(len(names))
"""


def test_router_processes_load_neither_numpy_nor_scipy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL_OF_ROUTER], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no module of router was found"
