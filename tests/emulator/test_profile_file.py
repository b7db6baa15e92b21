"""Profiles as documents: what is written is read again, and what makes no sense is refused by its place."""

import pytest

from emulator.profile_file import ProfileError, dump, load
from emulator.profiles import LLAMA_3_1_8B_H100, PROFILES


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
def test_what_is_written_is_read_again(profile):
    assert load(dump(profile), "p.yaml") == profile


def test_a_base_gives_what_is_not_named():
    profile = load("base: llama-3.1-8b-h100\nname: mine\nfront_ms: 5\nlink: {fixed_ms: 7}\n", "p.yaml")
    assert (profile.name, profile.front_ms, profile.link.fixed_ms) == ("mine", 5.0, 7.0)
    assert profile.linear_ms == LLAMA_3_1_8B_H100.linear_ms
    assert profile.link.bandwidth_gb_s == LLAMA_3_1_8B_H100.link.bandwidth_gb_s


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("base: x", r"p\.yaml: base 'x' is none of llama"),
        ("- 1", r"p\.yaml: a profile is a mapping"),
        ("a: [", r"p\.yaml: no YAML"),
        ("{}", r"p\.yaml: link\.fixed_ms is missing"),
        ("base: llama-3.1-8b-h100\nspeed: 3", r"p\.yaml: speed is no field; the fields are name, model"),
        ("base: llama-3.1-8b-h100\nlink: 3", r"p\.yaml: link is a mapping"),
        ("base: llama-3.1-8b-h100\nlink: {speed: 3}", r"p\.yaml: link\.speed is no field"),
        ("base: llama-3.1-8b-h100\nname: 3", r"p\.yaml: name is a str, got 3"),
        ("base: llama-3.1-8b-h100\nmax_sequences: true", r"p\.yaml: max_sequences is a int, got True"),
        ("base: llama-3.1-8b-h100\nmax_sequences: 2.5", r"p\.yaml: max_sequences is a int, got 2\.5"),
        ("base: llama-3.1-8b-h100\nlinear_ms: 3", r"p\.yaml: linear_ms is a list"),
        ("base: llama-3.1-8b-h100\nlinear_ms: [[1, 2], [3]]", r"p\.yaml: linear_ms\[1\] is \[tokens, ms\], got \[3\]"),
        ("base: llama-3.1-8b-h100\nfront_ms: -1", r"p\.yaml: profile llama-3\.1-8b-h100: times must be 0 ms or more"),
        ("base: llama-3.1-8b-h100\nfront_ms: .nan", r"p\.yaml: profile llama-3\.1-8b-h100: times must be 0 ms or more"),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_by_its_place(text, why):
    with pytest.raises(ProfileError, match=why):
        load(text, "p.yaml")
