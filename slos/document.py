"""YAML text to the root of its one document, as nodes that know their line and column.

Anchors, aliases and tags are refused: a file of objectives needs none, and with them a value is no longer
where it seems to be. Size, depth and number of values are bounded. Nothing raises; what is wrong goes to
`Problems`.
"""

from collections.abc import Callable

import yaml

from .nodes import REFUSED, Spot
from .problem import Problems, quoted

MAX_BYTES = 1 << 20
MAX_NODES = 20_000  # some 15 us each in PyYAML, so that a reload stays under a second
MAX_DEPTH = 20


def compose(text: str, problems: Problems) -> Spot | None:
    """The root of the document in `text`; None, and the reason in `problems`, where there is none."""
    roots = _compose(text, problems, lambda composer: [composer.get_single_node()])
    return roots[0] if roots else None


def compose_all(text: str, problems: Problems) -> list[Spot]:
    """The roots of one document or of several, with --- between; empty ones are left out."""

    def read(composer: "_Composer") -> list[yaml.Node | None]:
        nodes = []
        while composer.check_node():
            nodes.append(composer.get_node())
        return nodes

    return _compose(text, problems, read)


def _compose(text: str, problems: Problems, read: Callable[["_Composer"], list[yaml.Node | None]]) -> list[Spot]:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        problems.add(1, 1, "E109", f"the file is larger than {MAX_BYTES} bytes", "split it")
        return []
    try:
        roots = read(_Composer(text, problems))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        problems.add(line, column, "E100", message, "remove it")
        return []
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if isinstance(error, _TooMuch):
            problems.add(line, column, "E109", f"the file has {error.problem}", "split or simplify it")
        else:
            what = str(error.problem).replace("'\\x00'", "the end of the file")
            problems.add(line, column, "E100", f"not readable as YAML: {what}", _syntax_fix(error))
        return []
    except (yaml.YAMLError, ValueError, OverflowError, IndexError, RecursionError) as error:
        # PyYAML lets some through: chr() of the escape "\UFFFFFFFF", int() of a long directive.
        message = f"not readable as YAML: {type(error).__name__}"
        problems.add(1, 1, "E100", message, "check escapes in double quotes, and lines that start with %")
        return []
    found = [
        Spot("", root, root.start_mark, problems)
        for root in roots
        if root is not None and not (isinstance(root, yaml.ScalarNode) and not root.value and not root.style)
    ]
    if not found:
        problems.add(1, 1, "E107", "the file is empty", "start with version: 1")
    return found


class _TooMuch(yaml.MarkedYAMLError):
    pass


class _Composer(yaml.BaseLoader):
    """BaseLoader resolves every scalar to text; this also refuses references and bounds the work."""

    def __init__(self, text: str, problems: Problems) -> None:
        super().__init__(text)
        self._problems = problems
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooMuch(None, None, f"more than {MAX_NODES} values", mark)
        if self._depth >= MAX_DEPTH:
            raise _TooMuch(None, None, f"values nested more than {MAX_DEPTH} deep", mark)
        if isinstance(event, yaml.AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]
            name = quoted(f"*{event.anchor}")
            self._refuse(mark, f"the alias {name}", f"write the value itself, or {name} if it is a glob")
            return yaml.ScalarNode(REFUSED, "", mark, mark)
        if event.anchor is not None:
            self._refuse(mark, f"the anchor {quoted(f'&{event.anchor}')}", "remove it")
            event.anchor = None
        if event.tag not in (None, "!"):
            self._refuse(mark, f"the tag {quoted(event.tag)}", "remove it")
            event.tag = None
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refuse(self, mark: yaml.Mark, what: str, fix: str) -> None:
        self._problems.add(mark.line + 1, mark.column + 1, "E108", f"{what} is not accepted", fix)


def _syntax_fix(error: yaml.MarkedYAMLError) -> str:
    problem, context = error.problem or "", error.context or ""
    if "'\\t'" in problem:
        return "indent with spaces, not with tabs"
    if "block scalar" in context or "'>'" in problem:
        return 'put a value that starts with > in quotes, such as turn: ">=2"'
    if "alias" in context:
        return 'put a value that starts with * in quotes, such as model: "*"'
    if "cannot start any token" in problem or "mapping values" in problem:
        return "put the value in quotes"
    if "single document" in context:
        return "keep one document, without --- between"
    return "check the indentation, brackets and quotes"
