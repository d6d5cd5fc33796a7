"""The signature file: invalid entries and their error messages."""

from __future__ import annotations

import re

import pytest

from torchyard.builds.diagnosis.signature import (
    Signature,
    _check_together,
    all_remedies,
    load_signatures,
    parse_signatures,
)
from torchyard.errors import UsageError

GOOD = """
[[signature]]
id = "disk-full"
title = "The disk is full"
cause = "No space."
remedy = ["Free some."]
any = ['No space left on device']
"""


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_signatures(text, where="mine.toml")
    return caught.value


def test_a_good_file_is_read() -> None:
    (signature,) = parse_signatures(GOOD, where="mine.toml")
    assert signature.id == "disk-full"
    assert signature.level == "fatal"


def test_an_unknown_key_is_rejected_with_the_nearest_name() -> None:
    error = refused(GOOD + "remedies = []\n")
    assert "mine.toml.signature[0]: unknown key 'remedies'" in error.what
    assert "remedy" in error.hint


def test_a_misspelt_key_of_a_case_is_rejected() -> None:
    error = refused(GOOD + '[[signature.cases]]\nbefor = "2.6"\n')
    assert "'before'" in error.hint


def test_a_missing_key_is_named() -> None:
    error = refused(GOOD.replace('cause = "No space."\n', ""))
    assert "'cause' is missing" in error.what


def test_broken_toml_names_the_file() -> None:
    assert refused("[[signature").what.startswith("mine.toml: ")


@pytest.mark.parametrize("bad", ["Disk-Full", "disk full", "disk_full", "-disk", ""])
def test_ids_are_plain_words(bad: str) -> None:
    assert "an id must be words" in refused(GOOD.replace('"disk-full"', f'"{bad}"')).what


def test_a_broken_pattern_is_rejected() -> None:
    assert "is not a valid pattern" in refused(GOOD.replace("No space left", "No (space left")).what


@pytest.mark.parametrize("slow", [".*", "a|No space left", "(?:No space left)?", r"\d+ \w+", "abc"])
def test_a_pattern_that_could_not_be_searched_for_is_rejected(slow: str) -> None:
    error = refused(GOOD.replace("No space left on device", slow))
    assert "no literal part" in error.what
    assert "every line of a log" in error.why


def test_a_placeholder_must_be_filled_in_every_case() -> None:
    error = refused(GOOD.replace("Free some.", "Free some on {disk}."))
    assert "{disk}" in error.what
    assert "defaults.disk" in error.hint
    one_of_two = GOOD.replace("Free some.", "Free {disk}.").replace(
        "any = ['No space left on device']", "any = ['full disk (?P<disk>\\w+)', 'no space left']"
    )
    assert "{disk}" in refused(one_of_two).what
    assert parse_signatures(one_of_two + 'defaults = { disk = "it" }\n', where="x")


def test_an_exit_code_alone_leaves_captures_empty() -> None:
    text = GOOD.replace("Free some.", "Free {disk}.").replace(
        "['No space left on device']", "['full disk (?P<disk>\\w+)']"
    )
    assert parse_signatures(text, where="x")
    assert "{disk}" in refused(text + "exit-codes = [28]\n").what


def test_nothing_to_match_is_rejected() -> None:
    assert "it has no patterns" in refused(GOOD.replace("'No space left on device'", "")).what


def test_a_wrong_level_names_the_valid_ones() -> None:
    assert "fatal" in refused(GOOD + 'level = "fattal"\n').hint


def test_two_of_one_id_and_unknown_consequences_are_rejected() -> None:
    (one,) = parse_signatures(GOOD, where="x")
    with pytest.raises(UsageError, match="duplicate signature"):
        _check_together((one, one))
    (other,) = parse_signatures(GOOD + 'explains = ["disk-ful"]\n', where="x")
    with pytest.raises(UsageError) as caught:
        _check_together((other,))
    assert "'disk-full'" in caught.value.hint


@pytest.mark.parametrize("signature", load_signatures(), ids=lambda signature: signature.id)
def test_every_shipped_signature_is_written_out(signature: Signature) -> None:
    assert signature.cause.endswith((".", ")")), "a cause is sentences"
    assert signature.remedy
    for sentence in all_remedies(signature):
        assert sentence.endswith((".", ".)")), sentence
    for reference in signature.references:
        assert re.fullmatch(r"[\w./-]+#\d+|[\w-]+:[\w./ -]+", reference), reference
    for command in signature.commands:
        assert "\n" not in command
