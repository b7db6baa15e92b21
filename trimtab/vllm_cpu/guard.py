"""Runs one command and sees to it that nothing of it is left: `python guard.py FD COMMAND...`.

FD is the reading end of a pipe that only the starter can write to. When the starter is gone, however it ended, the
pipe closes and the whole process group is killed. The group is killed too when the command ends, so that its children
never outlive it. SIGTERM is passed on to the command, which then ends in its own way. Standard library only: it runs
as a file, in whatever Python there is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(arguments: list[str]) -> None:
    """Must be started as the leader of its own process group."""
    pipe, command = int(arguments[0]), arguments[1:]
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    threading.Thread(target=_end_with_starter, args=(pipe,), daemon=True).start()
    code = child.wait()
    print(f"ended, {f'signal {-code}' if code < 0 else f'exit code {code}'}", flush=True)
    os.killpg(0, signal.SIGKILL)


def _end_with_starter(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
