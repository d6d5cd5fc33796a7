"""Exceptions with long messages reach the controller in bounded length, with both ends."""

from __future__ import annotations

import json

import pytest

from torchyard.worker import wire
from torchyard.worker.main import _describe


@pytest.mark.parametrize("length", [0, 1, 3999, 4000, 4001, 5_000_000])
def test_error_answers_have_bounded_length(length: int) -> None:
    text = "start" + "x" * length + "end"
    error = wire.error_answer("raised", text, text * 3, text)["error"]
    assert len(json.dumps(error)) < 60_000
    for said in (error["message"], error["traceback"], error["hint"]):
        assert said.startswith("start")
        assert said.endswith("end")
    if length < 3000:
        assert error["message"] == text


def test_shortened_text_reports_omitted_characters() -> None:
    shortened = wire.shortened("a" * 100 + "b" * 100, 90)
    assert shortened == "a" * 60 + "\n[... 110 characters ...]\n" + "b" * 30


def test_exception_whose_str_raises() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    assert _describe(Broken()) == "Broken: (its __str__ raised KeyError)"
