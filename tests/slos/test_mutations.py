"""Mutated files: lines, characters and values of the examples deleted, doubled, exchanged and garbled.

Whatever comes out is a declaration or a list of problems, never an error of ours, and every problem has a place inside
the file and says what to write instead.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.problem import Problem, SpecError
from slos.spec import check_slos
from trimtab.settings import Settings
from trimtab.settings_file import parse_settings

EXAMPLES = Path(__file__).parents[2] / "examples"
SLO_FILES = [(EXAMPLES / name).read_text("utf-8") for name in ("slo.yaml", "slo-full.yaml")]
TRIMTAB_YAML = "version: 1\nmodels:\n  m: {decode: [http://127.0.0.1:1]}\n" + SLO_FILES[1].split("version: 1\n")[1]

TRAPS: tuple[str, ...] = (
    "yes",
    "no",
    "on",
    "1e3",
    "12:30:00",
    "0x10",
    ".inf",
    ".nan",
    "~",
    "null",
    "<<: *a",
    "&a ",
    "*a",
    "!!int 5",
)
TRAPS += ("-1", "0", "0.0", "99999999999999999999", "500", "5", "100%", "0.5", "101", "2%", "1d", "5y", "p99(ttft)")
TRAPS += ("{", "[", "]", "}", "- ", "? ", ": ", "|", ">", "#", "'", '"', "\t", "---\n", "%YAML 9.9\n", '"\\ud800"')
TRAPS += ("asked", "success", "{slo}", "https://u:p@h/", "\x00", "\ufeff", "\u2028", "é", "a" * 400)

pieces = st.sampled_from(TRAPS) | st.text(max_size=5)


@st.composite
def mutated(draw, originals: list[str]) -> str:
    text = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from((_lines, _characters, _nodes)))(draw, text)
    return text


def _lines(draw, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = draw(st.sampled_from(("delete", "double", "exchange", "indent", "garble")))
    if kind == "delete":
        del lines[at]
    elif kind == "double":
        lines.insert(other, lines[at])
    elif kind == "exchange":
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "indent":
        lines[at] = "  " + lines[at] if draw(st.booleans()) else lines[at].removeprefix("  ")
    else:
        lines[at] = draw(pieces) + "\n"
    return "".join(lines)


def _characters(draw, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(pieces) + text[at + draw(st.integers(0, 8)) :]


def _nodes(draw, text: str) -> str:
    """A value of any kind in the place of another; the file stays YAML."""
    try:
        whole = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, IndexError, TypeError, RecursionError):
        return text
    places = list(_places(whole))
    if not places:
        return text
    holder, key = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(("scalar", "list", "mapping", "delete", "move")))
    if kind == "delete":
        del holder[key]
    elif kind == "move":
        other_holder, other = draw(st.sampled_from(places))
        holder[key] = other_holder[other] if other_holder[other] is not holder else "x"
    else:
        holder[key] = {"scalar": draw(pieces), "list": [draw(pieces)], "mapping": {draw(pieces): draw(pieces)}}[kind]
    try:
        return str(yaml.safe_dump(whole, sort_keys=False, allow_unicode=draw(st.booleans())))
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _places(value):
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def inside(text: str, problems: tuple[Problem, ...]) -> None:
    # YAML breaks lines at more characters than "\n"; a file that ends early is blamed on the line after the last.
    breaks = sum(text.count(each) for each in "\n\r\x85\u2028\u2029")
    for each in problems:
        assert 1 <= each.line <= breaks + 2, each
        assert 1 <= each.column <= len(text) + 2, each
        assert each.fix and each.code[0] in "EW" and each.message, each
        assert "\n" not in str(each)
        str(each).encode("utf-8")


@settings(max_examples=300, deadline=None)
@given(mutated(SLO_FILES))
def test_a_mutated_slo_file_is_used_or_refused_with_places_and_fixes(text: str):
    declaration, problems = check_slos(text, "slo.yaml", 0.5)
    assert (declaration is None) == any(not each.advice for each in problems)
    inside(text, problems)


@settings(max_examples=100, deadline=None)
@given(mutated([TRIMTAB_YAML]))
def test_a_mutated_trimtab_yaml_is_used_or_refused_with_places_and_fixes(text: str):
    try:
        assert isinstance(parse_settings(text, "trimtab.yaml", Path("/nowhere")), Settings)
    except SpecError as error:
        inside(text, error.problems)


@pytest.mark.parametrize("value", ["[a]", "[[a, b]]", "a", "{}", "[]", "{a: b}", "{[a]: b}", "*a", "~"])
@pytest.mark.parametrize("key", ["models", "listen", "admin", "source", "slos", "slo_file", "control", "router"])
def test_a_value_of_another_kind_under_any_key_of_a_trimtab_yaml_is_refused_or_used(key: str, value: str):
    text = f"version: 1\n{key}: {value}\n"
    try:
        parse_settings(text, "trimtab.yaml", Path("/nowhere"))
    except SpecError as error:
        inside(text, error.problems)


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize(
    "old", ["p99(ttft) <= 500ms", "500ms", "28d", "2%", "page", "true", "97", "chat-ttft", "{rps: 2}"]
)
def test_no_trap_in_the_place_of_a_value_is_answered_with_a_traceback(old: str, trap: str):
    assert old in SLO_FILES[1]
    text = SLO_FILES[1].replace(old, trap, 1)
    inside(text, check_slos(text, "slo.yaml")[1])


def test_the_mutations_reach_both_ends():
    seen: set[bool] = set()

    @settings(max_examples=200, deadline=None, database=None)
    @given(mutated(SLO_FILES))
    def look(text: str) -> None:
        seen.add(check_slos(text, "slo.yaml")[0] is None)

    run: Callable[[], None] = look
    run()
    assert seen == {True, False}, "a property that only ever sees one outcome tests nothing"
