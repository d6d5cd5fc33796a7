"""The CI jobs on pages are YAML, and every command of Torchyard in them exists with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from torchyard.cli.group import program
from torchyard.results.gate.model import read_gate_file

yaml: Final = pytest.importorskip("yaml")

PAGE: Final = Path(__file__).parents[2] / "docs" / "howto" / "gate-a-pull-request.md"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STOPS: Final = {"||", "&&", ";", "|", ">", "2>&1"}


def blocks(language: str) -> list[str]:
    return [
        text for name, text in _FENCE.findall(PAGE.read_text(encoding="utf-8")) if name == language
    ]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every call of Torchyard in a piece of shell."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "torchyard" in words:
            start = words.index("torchyard") + 1
            end = next((n for n, w in enumerate(words) if n > start and w in _STOPS), len(words))
            yield words[start:end]


def scripts(job: Any) -> Iterator[str]:
    """Everything that a job runs."""
    yield from job.get("before_script", ())
    yield from job.get("script", ())


def unknown(words: list[str]) -> list[str]:
    """Words of a command that Torchyard does not know."""
    command: click.Command = program
    # As the program has it: click keeps the option for help of the first context that asks for it.
    context = click.Context(command, **command.context_settings)
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return [name]
        command, context = found, click.Context(found, parent=context, info_name=name)
    known = {word for parameter in command.get_params(context) for word in parameter.opts}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]


@pytest.fixture(scope="module")
def jobs() -> list[Any]:
    (gitlab,) = (yaml.safe_load(text) for text in blocks("yaml"))
    found = [job for job in gitlab.values() if isinstance(job, dict)]
    assert len(found) == 3
    return found


def test_every_command_and_option_exists(jobs: list[Any]) -> None:
    called = [words for job in jobs for script in scripts(job) for words in commands(script)]

    assert {words[0] for words in called} == {"bench", "gate", "baseline"}
    assert len(called) == 4
    assert [word for words in called for word in unknown(words)] == []


def test_commands_beside_the_jobs_exist(jobs: list[Any]) -> None:
    shown = [words for text in blocks("") for words in commands(text)]
    assert len(shown) >= 4
    assert [word for words in shown for word in unknown(words)] == []


def test_the_checker_finds_what_does_not_exist() -> None:
    assert unknown(["gate", "run", "--max-slowdwn", "2%"]) == ["--max-slowdwn"]
    assert unknown(["gaet"]) == ["gaet"]
    assert unknown(["baseline", "sav"]) == ["sav"]
    assert list(commands("cd x && torchyard gate run --json || test $? -eq 6")) == [
        ["gate", "run", "--json"]
    ]


def test_the_limits_of_the_page_are_read(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    path = tmp_path / "study.toml"
    path.write_text(text)
    table = read_gate_file(path)
    assert table.max_slowdown == "2%"
    assert list(table.limits) == ["models/*", "kernels/attention"]
