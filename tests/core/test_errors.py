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


def test_every_error_has_an_exit_code_and_is_in_the_module_docstring() -> None:
    for kind in _classes():
        assert kind.exit_code in errors.EXIT_CODES
        assert kind.__name__ in (errors.__doc__ or "")
        assert kind.__name__ in errors.__all__


def test_error_attributes() -> None:
    error = errors.UsageError("no", why="because", hint="fix it", log="run.log")
    assert (error.what, error.why, error.hint, error.log) == ("no", "because", "fix it", "run.log")
    assert str(error) == "no"
