"""The hierarchy of errors; each class has a documented exit code."""

from __future__ import annotations

import inspect

from torchyard import errors


def _classes() -> list[type[errors.TorchyardError]]:
    return [
        thing
        for _, thing in inspect.getmembers(errors, inspect.isclass)
        if issubclass(thing, errors.TorchyardError)
    ]


def test_every_error_has_a_documented_exit_code_and_says_what_it_means() -> None:
    assert len(_classes()) > 10
    for kind in _classes():
        assert kind.exit_code in errors.EXIT_CODES
        assert kind.__dict__["__doc__"]


def test_error_attributes() -> None:
    error = errors.UsageError("no", why="because", hint="fix it", log="run.log")
    assert (error.what, error.why, error.hint, error.log) == ("no", "because", "fix it", "run.log")
    assert str(error) == "no"
