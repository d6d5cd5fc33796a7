"""Dataclasses to JSON values and back, and error messages for invalid files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.comparison import Comparison, Failure, Verdict
from torchyard.core.records import decode, encode, nearest_hint, renamed
from torchyard.core.study import Environment, Study, Target, Variant, Workload
from torchyard.errors import UsageError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size_bytes: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    share: float | None = None
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    mixed: int | str | bool = 1
    table: dict[str, int] = field(default_factory=dict)
    numbers: tuple[float, ...] = ()


names = st.text(max_size=8)
inners = st.builds(Inner, size_bytes=st.integers(), note=names)
outers = st.builds(
    Outer,
    name=names,
    colour=st.sampled_from(Colour),
    kind=st.sampled_from(["a", "b"]),
    share=st.none() | st.floats(allow_nan=False),
    inner=st.none() | inners,
    items=st.lists(inners, max_size=3).map(tuple),
    pairs=st.lists(st.tuples(names, st.integers()), max_size=3).map(tuple),
    mixed=st.integers() | names | st.booleans(),
    table=st.dictionaries(names, st.integers(), max_size=3),
    numbers=st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
)


@given(outers)
def test_encode_decode_round_trip(value: Outer) -> None:
    text = json.dumps(encode(value))
    assert decode(Outer, json.loads(text), where="") == value


@pytest.mark.parametrize(
    ("data", "what", "hint"),
    [
        ({"name": "x", "colur": "red"}, "unknown key 'colur'", "did you mean 'colour'?"),
        ({}, "the key 'name' is missing", "add name = ..."),
        ({"name": 3}, "study.name: 3 is not a string", "give a string"),
        ({"name": "x", "colour": "bleu"}, "'bleu' is not a valid value", "did you mean 'blue'?"),
        ({"name": "x", "kind": "z"}, "'z' is not a valid value", "valid values: a, b"),
        ({"name": "x", "share": "much"}, "study.share: 'much' is not a number", "give a number"),
        ({"name": "x", "share": True}, "study.share: True is not a number", "give a number"),
        ({"name": "x", "inner": 5}, "study.inner: 5 is not a table", "give a table"),
        ({"name": "x", "inner": {"size-byte": 1}}, "unknown key 'size-byte'", "'size-bytes'"),
        ({"name": "x", "items": [{"size-bytes": 1}, {}]}, "study.items[1]", "size-bytes"),
        ({"name": "x", "items": "ab"}, "study.items: 'ab' is not a list", "give a list"),
        ({"name": "x", "pairs": [["a", 1, 2]]}, "study.pairs[0]", "a list of 2"),
        ({"name": "x", "mixed": 1.5}, "study.mixed", "a whole number or a string"),
        ({"name": "x", "numbers": [1.5, "2"]}, "study.numbers[1]: '2' is not a number", "give"),
        ({"name": "x", "numbers": [True]}, "study.numbers[0]: True is not a number", "give"),
        ({"name": "x", "table": {"k": "v"}}, "study.table.k: 'v' is not a whole number", "give"),
    ],
)
def test_invalid_value_error_names_the_key_and_the_fix(
    data: dict[str, object], what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        decode(Outer, data, where="study")
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_keys_may_be_written_with_dashes() -> None:
    assert decode(Inner, {"size-bytes": 4}, where="") == Inner(size_bytes=4)


def test_whole_numbers_become_numbers() -> None:
    """Values that are taken as they are must not hide those that are converted."""
    read = decode(Outer, {"name": "x", "share": 2, "numbers": [1, 2.5, 3]}, where="")
    assert (read.share, read.numbers) == (2.0, (1.0, 2.5, 3.0))
    assert {type(number) for number in (read.share, *read.numbers)} == {float}


def test_lenient_reading_skips_what_a_newer_version_added() -> None:
    assert decode(Inner, {"size_bytes": 4, "new": 1}, where="", strict=False) == Inner(size_bytes=4)


def test_hint_lists_valid_names_without_a_close_match() -> None:
    assert nearest_hint("zzz", ["eager", "inductor"], what="backend") == (
        "valid backends: eager, inductor"
    )
    assert nearest_hint("zzz", []) == "valid names: none"


def test_study_and_comparison_round_trip() -> None:
    target = Target(name="here", python="/usr/bin/python3", variables=(("A", "1"),))
    baseline = Variant(name="eager", target=target)
    candidate = Variant(
        name="fast",
        target=target,
        backend="inductor",
        environment=Environment(name="tc", threads=2),
    )
    workload = Workload(suite="kernels", name="matmul", parameters=(("size", 5), ("fast", True)))
    study = Study(name="s", baseline=baseline, candidates=(candidate,), workloads=(workload,))
    assert decode(Study, json.loads(json.dumps(encode(study))), where="") == study
    row = Comparison(
        workload=workload,
        baseline="eager",
        candidate="fast",
        verdict=Verdict.FAILED,
        failure=Failure(kind="raised", phase="check", variant="fast", message="no"),
    )
    assert decode(Comparison, json.loads(json.dumps(encode(row))), where="") == row


def test_variants_share_a_process_only_with_one_target_and_environment() -> None:
    target = Target(name="here", python="python3")
    eager = Variant(name="eager", target=target)
    inductor = Variant(name="inductor", target=target, backend="inductor", precision="bfloat16")
    preloaded = Variant(
        name="tc", target=target, environment=Environment(name="tc", preload=("x",))
    )
    assert eager.process_key == inductor.process_key
    assert eager.process_key != preloaded.process_key
    assert preloaded.environment.touches_allocator()
    assert Environment(name="m", variables=(("MALLOC_ARENA_MAX", "1"),)).touches_allocator()
    assert not Environment(name="t", variables=(("OMP_WAIT_POLICY", "x"),)).touches_allocator()


def test_workload_label_shows_non_default_settings() -> None:
    assert Workload(suite="kernels", name="matmul").label == "kernels/matmul inference"
    full = Workload(
        suite="models",
        name="gpt",
        mode="training",
        device="cuda:1",
        batch_size=4,
        optimizer_step=True,
        parameters=(("layers", 2),),
    )
    assert full.label == "models/gpt training +step b4 cuda:1 layers=2"


class Point(NamedTuple):
    """A named tuple is a table, not a list."""

    name: str
    verdict: Verdict
    places: tuple[int, ...]


def test_a_named_tuple_is_a_table() -> None:
    point = Point("a", Verdict.SAME, (1, 2))
    assert encode({"all": (point,)}) == {
        "all": [{"name": "a", "verdict": "same", "places": [1, 2]}]
    }


@dataclass(frozen=True, kw_only=True)
class Moved:
    fix: str = renamed("", formerly="mend")


@pytest.mark.parametrize(
    ("record", "fix"),
    [({"fix": "a"}, "a"), ({"mend": "b"}, "b"), ({"mend": "old", "fix": "new"}, "new"), ({}, "")],
)
def test_a_renamed_field_is_read_by_both_names(record: dict[str, str], fix: str) -> None:
    assert decode(Moved, record, where="record") == Moved(fix=fix)


def test_a_renamed_field_is_written_with_both_names() -> None:
    assert encode(Moved(fix="a")) == {"fix": "a", "mend": "a"}
