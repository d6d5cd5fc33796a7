"""User files have short names for people, and different files are never shown alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.short_names import (
    short_label,
    short_labels,
    short_texts,
    with_short_names,
    with_short_workloads,
)
from torchyard.core.study import Workload

NET = Workload(suite="file", name="/home/me/a/model.py:Net", batch_size=8, device="cuda")
GPT = Workload(suite="models", name="gpt")


def file(name: str) -> Workload:
    return Workload(suite="file", name=name)


def test_a_file_is_shown_by_its_name() -> None:
    assert short_label(NET) == "model.py:Net inference b8 cuda"
    assert NET.label == "file//home/me/a/model.py:Net inference b8 cuda"
    assert short_label(GPT) == GPT.label == "models/gpt inference"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["/p/a/m.py", "/p/b/m.py"], ["a/m.py", "b/m.py"]),
        (["/p/a/m.py:X", "/p/a/m.py:Y", "/p/a/m.py"], ["m.py:X", "m.py:Y", "m.py"]),
        (["/p/a/x/m.py", "/p/b/x/m.py", "/p/n.py"], ["a/x/m.py", "b/x/m.py", "n.py"]),
        (["/m.py", "/a/m.py"], ["/m.py", "a/m.py"]),
        (["/a/m.py", "/a/a/m.py", "/m.py"], ["/a/m.py", "a/a/m.py", "/m.py"]),
        (["/a:b/m.py:Net", "/a/.pyenv/m.py:Net"], ["a:b/m.py:Net", ".pyenv/m.py:Net"]),
        (["/p/a b.py", "relative.py", "<script>"], ["a b.py", "file/relative.py", "file/<script>"]),
    ],
)
def test_files_of_the_same_name_get_the_parents_they_need(
    names: list[str], shown: list[str]
) -> None:
    workloads = [file(name) for name in names]
    assert [one.label for one in with_short_names(workloads)] == [f"{x} inference" for x in shown]


def test_the_same_holds_for_the_texts_of_labels() -> None:
    labels = ["file//p/a/m.py:Net inference b8", "file//p/b/m.py inference", "models/gpt inference"]
    assert list(short_texts(labels).values()) == [
        "a/m.py:Net inference b8",
        "b/m.py inference",
        "models/gpt inference",
    ]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "a.py", ".py", "a b", "a:b"]), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_different_files_are_never_shown_alike(parts: list[list[str]]) -> None:
    workloads = [file("/" + "/".join([*folders, "m.py"])) for folders in parts]
    for shown in (short_labels(workloads), short_texts(one.label for one in workloads)):
        assert len(set(shown.values())) == len({one.label for one in workloads}) == len(shown)


def test_only_the_workload_of_a_comparison_changes() -> None:
    one = Comparison(workload=NET, baseline="a", candidate="b", verdict=Verdict.SAME)
    (shown,) = with_short_workloads([one])
    assert {**encode(shown), "workload": None} == {**encode(one), "workload": None}
    assert encode(shown.workload) == {**encode(NET), "name": "model.py:Net"}
