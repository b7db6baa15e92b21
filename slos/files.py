"""Reading a file of SLOs, or another one of its kind, from disk: the only I/O of this package, for the shells that
load and reload it."""

from pathlib import Path

from .document import MAX_BYTES
from .policy import Declaration
from .problem import Problem, SpecError
from .spec import load_slos


def load_slo_file(path: Path) -> Declaration:
    """Reads and checks `path`. Raises SpecError, also for a file that is missing, too large or not UTF-8."""
    return load_slos(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of `path`, at most one byte more than a document may have. Raises SpecError."""
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # one more than allowed is enough for `compose` to refuse it
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise SpecError([Problem(source, line, column, "E110", message, "save the file as UTF-8")]) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"cannot be read: {reason}"
        raise SpecError([Problem(source, 1, 1, "E110", message, "check the path")]) from None
