"""The file that declares SLOs: what it may say, and what it answers to everything else."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.document import MAX_BYTES, MAX_NODES
from slos.objective import Match, Signal, Slo
from slos.policy import Declaration
from slos.problem import Problem
from slos.spec import SpecError, load_slos

EXAMPLE = (Path(__file__).parents[2] / "examples" / "slo.yaml").read_text("utf-8")


def one(lines: str) -> Slo:
    """The SLO of a file with one, whose keys besides its name are `lines`."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return load_slos(f"version: 1\nslos:\n  - name: x\n{body}", "slo.yaml").slos[0]


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        load_slos(text, "slo.yaml")
    return caught.value.problems


def problem(lines: str) -> Problem:
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    found = problems(f"version: 1\nslos:\n  - name: x\n{body}")
    assert len(found) == 1, found
    return found[0]


def test_the_example_declares_the_objectives_of_the_first_headline_scenario():
    assert load_slos(EXAMPLE, "slo.yaml") == Declaration(
        service="chat",
        slos=(
            Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)),
            Slo("tpot", Signal.TPOT, 0.99, 0.038),
        ),
        source="slo.yaml",
    )


def test_an_slo_knows_its_line():
    assert [slo.line for slo in load_slos(EXAMPLE, "slo.yaml").slos] == [5, 8]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("objective: p99(ttft) <= 2s", "signal: ttft\npercent: 99\nmax: 2s"),
        ("objective: p99.9(itl)<=38ms", "signal: itl\npercent: 99.9\nmax: 38 ms"),
        ('objective: "p50( e2e ) <= 1.5m"', "signal: e2e\npercent: 50\nmax: 90s"),
        ("objective: success >= 99.9%", "signal: success\npercent: 99.9"),
        ("objective: success >= 99.95 %", "signal: success\npercent: 99.95%"),
    ],
)
def test_an_objective_in_one_line_says_the_same_as_the_long_form(short: str, long: str):
    assert one(short) == one(long)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("38ms", 0.038),
        ("9ms", 0.009),
        ("0.5s", 0.5),
        (".5s", 0.5),
        ("2s", 2.0),
        ("1.5m", 90.0),
        ("1h", 3600.0),
        ("24h", 86_400.0),
    ],
)
def test_a_duration_is_a_number_and_its_unit(text: str, seconds: float):
    assert one(f"objective: p99(e2e) <= {text}").threshold_s == seconds


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ('{model: "llama-*"}', Match(("llama-*",))),
        ('{model: ["llama-*", qwen]}', Match(("llama-*", "qwen"))),
        ('{turn: ">=2"}', Match(turn_min=2)),
        ("{turn: 1}", Match(turn_min=1, turn_max=1)),
        ('{turn: "2..5"}', Match(turn_min=2, turn_max=5)),
        ("{turn: 2..5}", Match(turn_min=2, turn_max=5)),
        ("{streaming: true}", Match(streaming=True)),
        ("{streaming: false}", Match(streaming=False)),
        ("{}", Match()),
    ],
)
def test_a_match_says_which_turns_count(match: str, expected: Match):
    assert one(f"objective: p99(e2e) <= 2s\nmatch: {match}").match == expected


def test_a_problem_is_one_line_with_place_code_path_and_fix():
    found = problems("version: 1\nslos:\n  - name: chat-tpot\n    signal: tpot\n    percent: 95\n\n    max: 500\n")
    assert [str(each) for each in found] == ['slo.yaml:7:5 E203 slos[0].max: "500" has no unit; write 500ms or 0.5s']


def test_all_problems_of_a_file_come_at_once_in_the_order_of_its_lines():
    found = problems(
        "version: 2\nservce: chat\nslos:\n"
        "  - name: A B\n    objective: p99(ttft) < 500\n    match: {turn: 2..1, streaming: yes}\n"
        "  - signal: ttf\n    percent: .99\n    max: 1d\n"
    )
    assert [(each.line, each.code) for each in found] == [
        (1, "E112"),
        (2, "E101"),
        (4, "E105"),
        (5, "E201"),
        (5, "E203"),
        (6, "E208"),
        (6, "E104"),
        (7, "E103"),
        (7, "E202"),
        (8, "E204"),
        (9, "E203"),
    ]


@pytest.mark.parametrize(
    ("lines", "code", "word"),
    [
        ("objective: p99(ttft) <= 500", "E203", "500ms or 0.5s"),
        ("objective: p99(ttft) <= 2", "E203", "2s or 2000ms"),
        ("objective: p99(ttft) <= 500us", "E203", "ms, s, m, h"),
        ("objective: p99(ttft) <= 1e3s", "E203", "500ms"),
        ("objective: p99(ttft) <= 12:30:00", "E203", "500ms"),
        ("objective: p99(ttft) <= fast", "E203", "500ms"),
        ("objective: p99(ttft) <= 0ms", "E207", "positive"),
        ("objective: p99(ttft) <= -2s", "E207", "positive"),
        ("objective: p99(ttft) <= nan", "E207", "500ms"),
        ("objective: p99(ttft) <= inf s", "E207", "500ms"),
        ("objective: p99(ttft) <= 25h", "E207", "unit"),
        (f"objective: p99(ttft) <= {'9' * 250}s", "E207", "unit"),
        ("objective: p99(ttft) < 2s", "E201", "<="),
        ("objective: p99(ttft) >= 2s", "E201", "<="),
        ("objective: ttft <= 2s", "E201", "p99(ttft) <= 2s"),
        ("objective: p99 ttft 2s", "E201", "p99(ttft) <= 2s"),
        ("objective: p99(success) <= 2s", "E201", "success >= 99.9%"),
        ("objective: success <= 99%", "E201", "success >= 99.9%"),
        ("objective: success >= 99.9", "E203", "99.9%"),
        ("objective: success >= 0.999", "E204", "did you mean 99.9?"),
        ("objective: success >= 100%", "E204", "99"),
        ("objective: p0.99(ttft) <= 2s", "E204", "did you mean 99?"),
        ("objective: p100(ttft) <= 2s", "E204", "99"),
        ("objective: p99.99(ttft) <= 2s", "E204", "99.9"),
        ("objective: p10(ttft) <= 2s", "E204", "50 to 99.9"),
        ("objective: p(ttft) <= 2s", "E204", "99"),
        ("objective: p99(tftt) <= 2s", "E202", "did you mean ttft?"),
        ("objective: p99(queue) <= 2s", "E202", "ttft, tpot, itl, e2e, success"),
        ("objective:", "E104", "p99(ttft) <= 2s"),
        ("objective: [p99(ttft) <= 2s]", "E104", "p99(ttft) <= 2s"),
        (f'objective: "p99(ttft) {" " * 400}x"', "E104", "300"),
        ("objective: p99(ttft) <= 2s\npercent: 99", "E210", "keep one"),
        ("signal: ttft\npercent: 99", "E103", "max"),
        ("signal: ttft\nmax: 2s", "E103", "percent"),
        ("percent: 99\nmax: 2s", "E103", "signal"),
        ("signal: success\npercent: 99\nmax: 2s", "E210", "remove"),
        ("signal: ttft\npercent: 1e2\nmax: 2s", "E204", "99"),
        ("signal: ttft\npercent: .nan\nmax: 2s", "E204", "99"),
        ("match: {}", "E103", "objective"),
        ("objective: p99(ttft) <= 2s\nobjectve: 1", "E101", "did you mean objective?"),
        ("objective: p99(ttft) <= 2s\nmatch:", "E104", "mapping"),
        ("objective: p99(ttft) <= 2s\nmatch: all", "E104", "mapping"),
        ("objective: p99(ttft) <= 2s\nmatch: {model: []}", "E104", "one or more"),
        ("objective: p99(ttft) <= 2s\nmatch: {model: ''}", "E104", "glob"),
        ("objective: p99(ttft) <= 2s\nmatch: {turn: 0}", "E208", ">=1"),
        ("objective: p99(ttft) <= 2s\nmatch: {turn: 5..2}", "E208", "2..5"),
        ("objective: p99(ttft) <= 2s\nmatch: {turn: '>2'}", "E208", ">=2"),
        ("objective: p99(ttft) <= 2s\nmatch: {turn: '>=2..5'}", "E208", "2..5"),
        (f"objective: p99(ttft) <= 2s\nmatch: {{turn: {'9' * 250}}}", "E208", ">=2"),
        ("objective: p99(ttft) <= 2s\nmatch: {streaming: yes}", "E104", "true or false"),
        ("objective: p99(ttft) <= 2s\nmatch: {streaming: false}", "E209", "e2e"),
        ("objective: p99(ttft) <= 2s\nmatch: {? [a] : b}", "E104", "key"),
        ("objective: p99(ttft) <= 2s\nmatch: {turn: 2, turn: 3}", "E102", "keep one"),
        ("objective: &a p99(ttft) <= 2s", "E108", "anchor"),
        ("objective: *a", "E108", "alias"),
        ("objective: !!str p99(ttft) <= 2s", "E108", "tag"),
        ("objective: p99(ttft) <= 2s\nmatch: {model: *-8b }", "E108", '"*-8b" if it is a glob'),
    ],
)
def test_a_mistake_is_named_with_what_to_write_instead(lines: str, code: str, word: str):
    found = problem(lines)
    assert found.code == code
    assert word in f"{found.message}; {found.fix}"


@pytest.mark.parametrize(
    ("text", "place", "code", "word"),
    [
        ("", (1, 1), "E107", "version: 1"),
        ("# nothing\n", (1, 1), "E107", "version: 1"),
        ("[]", (1, 1), "E104", "mapping"),
        ("slos:\n\t- a", (2, 1), "E100", "tabs"),
        ("turn: >=2", (1, 8), "E100", 'turn: ">=2"'),
        ("{turn: >=2}", (1, 8), "E100", 'turn: ">=2"'),
        ("model: *", (1, 9), "E100", 'model: "*"'),
        ("a: b: c", (1, 5), "E100", "quotes"),
        ("a: @b", (1, 4), "E100", "quotes"),
        ("a: 1\n---\nb: 2", (2, 1), "E100", "one document"),
        ("a: [", (1, 5), "E100", "brackets"),
        ("a:\n b: \x07", (2, 5), "E100", "U+0007"),
        ("a: \ud800", (1, 4), "E100", "U+D800"),
        ('a: "\\UFFFFFFFF"', (1, 1), "E100", "escapes"),
        ("[" * 10_000, (1, 21), "E109", "deep"),
        ("- a\n" * (MAX_NODES + 1), (MAX_NODES, 3), "E109", "values"),
        ("#" * (MAX_BYTES + 1), (1, 1), "E109", "larger"),
        ("#" + "é" * (MAX_BYTES // 2), (1, 1), "E109", "larger"),
    ],
)
def test_text_that_is_no_file_of_objectives_is_refused_at_its_place(
    text: str, place: tuple[int, int], code: str, word: str
):
    (found,) = problems(text)
    assert ((found.line, found.column), found.code) == (place, code)
    assert word in f"{found.message}; {found.fix}"


def test_a_percent_is_not_blamed_for_what_an_unknown_signal_leaves_open():
    assert problem("signal: succes\npercent: 99.99").code == "E202"


def test_each_of_several_anchors_of_one_name_is_reported():
    found = problems("version: &a 1\nservice: &a chat\nslos: [*a]\n")
    assert [(each.line, each.code) for each in found] == [(1, "E108"), (2, "E108"), (3, "E108")]


def test_two_slos_cannot_share_a_name():
    promise = "{name: a, objective: p99(ttft) <= 2s}"
    found = problems(f"version: 1\nslos:\n  - {promise}\n  - {promise}\n")
    assert [str(each) for each in found] == [
        'slo.yaml:4:6 E106 slos[1].name: "a" is already the name on line 3; give each objective its own name'
    ]


@pytest.mark.parametrize(
    ("name", "fix"), [("Chat TTFT", "chat-ttft"), ("-a-", "a"), ("a" * 64, "a" * 63), ("ü", "later-ttft")]
)
def test_a_name_is_a_dns_label_and_the_nearest_one_is_offered(name: str, fix: str):
    (found,) = problems(f"version: 1\nslos:\n  - name: {name}\n    objective: p99(ttft) <= 2s\n")
    assert found.code == "E105"
    assert found.fix == f"write {fix}"


@pytest.mark.parametrize(
    "text", ["version: 1\n", "version: 1\nslos:\n", "version: 1\nslos: []\n", "version: 1\nslos: {}\n"]
)
def test_a_file_without_objectives_is_refused(text: str):
    (found,) = problems(text)
    assert found.code in ("E103", "E104")
    assert "slos" in found.message


traps = ["<<: *a", "&a ", "!!int ", "---\n", "...\n", "yes", "1e3", "12:30:00", ".inf", "~", "%YAML 9.9"]
traps += ['"\\ud800"', '"\\UFFFFFFFF"', '"\\x"', "? ", "- - - ", "  - name: tpot\n", "\r\n", "objective: "]
added = st.text(max_size=6) | st.sampled_from("\t\n :-?&*!|>'\"%@`{}[],#\\\x00\ufeff\u2028é") | st.sampled_from(traps)
edit = st.tuples(st.integers(0, len(EXAMPLE)), st.integers(0, 12), added)


def check(text: str) -> None:
    found: tuple[Problem, ...] = ()
    names: list[str] = []
    try:
        names = [slo.name for slo in load_slos(text, "slo.yaml").slos]
    except SpecError as error:
        found = error.problems
    assert bool(names) != bool(found)
    assert len(set(names)) == len(names)
    for each in found:
        assert each.line >= 1
        assert each.column >= 1
        assert each.fix
        assert "\n" not in str(each)
        str(each).encode("utf-8")


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.lists(edit, min_size=1, max_size=5))
def test_a_damaged_file_loads_or_says_what_is_wrong_and_nothing_else_happens(edits):
    text = EXAMPLE
    for at, removed, added in edits:
        text = text[:at] + added + text[at + removed :]
    check(text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=80))
def test_any_text_loads_or_says_what_is_wrong(text: str):
    check(text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    st.sampled_from(["name", "objective", "signal", "percent", "max", "match", "turn", "model", "streaming"]),
    st.text(alphabet="p9.0(ttfsuce) <>=%-+msh:e*'\"", max_size=30),
)
def test_any_value_of_any_key_loads_or_says_what_is_wrong(key: str, value: str):
    where = f"match: {{{key}: {value}}}" if key in ("turn", "model", "streaming") else f"{key}: {value}"
    check(f"version: 1\nslos:\n  - name: x\n    {where}\n")
