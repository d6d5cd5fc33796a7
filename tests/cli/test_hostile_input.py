"""No user input ends a command with exit code 1, a traceback, or a hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
import pytest

from tests.cli.command_line import call
from tests.cli.hostile_files import ARCHIVES, FILES
from torchyard.cli.group import program
from torchyard.cli.options import Count, Number
from torchyard.errors import EXIT_CODES

Capture = pytest.CaptureFixture[str]
LIMIT_S = 60
REFUSED = set(EXIT_CODES) - {0, 1, 124, 130, 141}

READERS: dict[str, tuple[str, ...]] = {
    "bench": ("bench", "{}", "--dry-run"),
    "sweep": ("sweep", "{}", "--plan"),
    "build": ("build", "{}", "--plan"),
    "build --locked": ("build", "openblas", "--locked", "{}", "--plan"),
    "doctor": ("doctor", "{}"),
    "tune --space": ("tune", "kernels/matmul", "--space", "{}", "--dry-run"),
    "gate --limits": ("gate", "--limits", "{}", "--baseline", "x"),
    "gate --baseline": ("gate", "--baseline", "{}"),
    "results import": ("results", "import", "{}"),
    "report": ("report", "{}"),
    "compare": ("compare", "{}", "{}"),
    "serve --token-file": ("serve", "--token-file", "{}"),
    "values show": ("values", "show", "{}"),
    "baseline save": ("baseline", "save", "name", "{}"),
    "machine audit --against": ("machine", "audit", "--against", "{}", "--seconds", "5"),
}


class NeverEnds(BaseException):
    """No command catches it."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise in the middle of whatever does not end."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise NeverEnds(f"did not end within {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(capsys: Capture, arguments: tuple[str, ...]) -> str:
    """Run it: refused with a documented code, a hint and a message of bounded length."""
    with limited():
        completed = call(capsys, *arguments)
    assert completed.code in REFUSED, (completed.code, arguments, completed.err[:2000])
    assert "Traceback" not in completed.err
    if "rejected: " not in completed.err:
        assert "error: " in completed.err
        assert "hint: " in completed.err, completed.err[:500]
    assert len(completed.err) < 20_000
    return completed.err


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "yard"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_invalid_files(tmp_path: Path, capsys: Capture, reader: str) -> None:
    for number, (name, make) in enumerate(FILES.items()):
        if name == "unreadable" and os.geteuid() == 0:
            continue
        path = tmp_path / f"hostile-{number}.toml"
        make(path)
        arguments = tuple(word.format(path) for word in READERS[reader])
        try:
            check(capsys, arguments)
        except AssertionError as error:
            raise AssertionError(f"{reader}: {name}") from error


def test_invalid_logs(tmp_path: Path, capsys: Capture) -> None:
    for number, (name, make) in enumerate(FILES.items()):
        path = tmp_path / f"hostile-{number}.log"
        make(path)
        with limited():
            completed = call(capsys, "build", "explain", str(path))
        plain = path.is_file() and not path.is_symlink()
        assert completed.code == (0 if plain else 2), (name, completed)
        assert ("hint: " in completed.err) != plain


@pytest.mark.parametrize("name", ARCHIVES)
def test_invalid_archives(tmp_path: Path, capsys: Capture, name: str) -> None:
    path = tmp_path / "runs.tar.gz"
    path.write_bytes(ARCHIVES[name])
    check(capsys, ("results", "import", str(path)))
    runs = tmp_path / "yard" / "runs"
    left = [entry.name for entry in runs.iterdir()] if runs.exists() else []
    assert "run" not in left
    assert not Path("/etc/escaped").exists()
    assert not (tmp_path / "escaped").exists()


# Numbers that mean nothing, for every option that is one.
IMPOSSIBLE = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "-0.5",
    "9" * 400,
    "9" * 5000,
    "1_000",
    "\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT TWO}",
    "\N{FULLWIDTH DIGIT ONE}",
    "0x10",
    "",
    " ",
    "\t",
    "1e",
    "--",
    "NaN%",
    "infs",
    "1" * 30_000,
    "\ud800",
)
DURATIONS = ("--time", "--step-limit")
COUNTS = ("--threads", "--seed", "--batch-size")


@pytest.mark.parametrize("option", [*DURATIONS, *COUNTS, "--memory-limit", "--margin"])
def test_impossible_numbers_of_a_bench(capsys: Capture, option: str) -> None:
    assert option in {word for one in commands()["bench"].params for word in one.opts}
    for value in (*IMPOSSIBLE, "0" if option != "--seed" else "-1"):
        if option == "--margin" and value == "0":
            continue  # no margin at all
        check(capsys, ("bench", "--only", "kernels/matmul", "--dry-run", f"{option}={value}"))


@pytest.mark.parametrize("count", ["100000", "99999999", "10000"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--only", "kernels/matmul", "--dry-run", "--threads"),
        ("bench", "--only", "kernels/matmul", "--dry-run", "--candidate", "eager+threads="),
        ("sweep", "--suites", "kernels", "--plan", "--threads"),
        ("machine", "audit", "--threads"),
        ("machine", "peak", "--threads"),
        ("tune", "kernels/matmul", "--dry-run", "--threads"),
        ("perf-test", "--threads"),
        ("profile", "--threads"),
    ],
    ids=" ".join,
)
def test_more_threads_than_any_machine_has(
    capsys: Capture, arguments: tuple[str, ...], count: str
) -> None:
    command = commands()[arguments[0]] if arguments[0] != "machine" else None
    if command is not None and not isinstance(command, click.Group):
        known = {word for one in command.params for word in one.opts}
        assert arguments[-1] in known or arguments[-1].endswith("=")
    joined = arguments[-1].endswith("=")
    words = (*arguments[:-1], arguments[-1] + count) if joined else (*arguments, count)
    message = check(capsys, words)
    assert "threads" in message or "no option" in message


STUDY = """
candidates = ["inductor"]
{top}
[[workloads]]
name = "kernels/matmul"
{workload}
[settings]
{settings}
[budget]
{budget}
"""


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": "threads = -1"},
        {"settings": "threads = 0"},
        {"settings": "threads = 2.5"},
        {"settings": "threads = 100000"},
        {"settings": "threads = true"},
        {"settings": 'memory-limit = "-8GiB"'},
        {"settings": "memory-limit = -1"},
        {"settings": "memory-limit = 0"},
        {"settings": 'memory-limit = "nan"'},
        {"settings": f'memory-limit = "{"9" * 400}GiB"'},
        {"settings": "seed = -1"},
        {"settings": "step-limit = 0"},
        {"settings": "step-limit = -5"},
        {"settings": 'step-limit = "1e9h"'},
        {"budget": "time = 0"},
        {"budget": "time = -1"},
        {"budget": "time = nan"},
        {"budget": "time = 1e300"},
        {"budget": 'time = "inf"'},
        {"budget": "alpha = nan"},
        {"budget": "alpha = 2"},
        {"budget": "max-launches = 1.5"},
        {"budget": "max-launches = 999999999999"},
        {"workload": "batch-size = 0"},
        {"workload": "batch-size = -3"},
        {"workload": "batch-size = 1e400"},
        {"top": "[environments.x]\nthreads = 100000"},
        {"top": "[environments.x]\ninstances = -1"},
        {"top": '[environments.x]\ncores = "0-99999999999"'},
        {"top": f'[environments.x]\ncores = "{"9" * 5000}"'},
    ],
    ids=str,
)
def test_impossible_numbers_of_a_study(
    tmp_path: Path, capsys: Capture, changed: dict[str, str]
) -> None:
    parts = {"top": "", "workload": "", "settings": "", "budget": "", **changed}
    text = STUDY.format(**{**parts, "top": ""})
    path = tmp_path / "study.toml"
    path.write_text(text + parts["top"] + "\n")
    assert call(capsys, "bench", str(path), "--dry-run").code == 2
    check(capsys, ("bench", str(path), "--dry-run"))


def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    found: dict[str, click.Command] = {}

    def walk(group: click.Group, words: tuple[str, ...]) -> None:
        context = click.Context(group, info_name="torchyard")
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            found[" ".join((*words, name))] = command
            if isinstance(command, click.Group):
                walk(command, (*words, name))

    walk(program, ())
    return found


def test_every_number_of_an_option_is_bounded() -> None:
    loose = [
        f"{words} {option.opts[0]}"
        for words, command in commands().items()
        for option in command.params
        if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType))
        and not isinstance(option.type, (Count, Number))
    ]
    assert loose == []


def test_every_option_that_is_a_number_refuses_what_is_none() -> None:
    for command in commands().values():
        for option in command.params:
            if isinstance(option.type, (Count, Number)):
                for value in IMPOSSIBLE:
                    low = option.type.min
                    if value in {"-1", "-0.5"} and low is not None and low < 0:
                        continue
                    with pytest.raises(click.BadParameter):
                        option.type.convert(value, option, None)


WORDS = (
    "x" * 30_000,
    "x" * 40_000,
    "\ud800",
    "\udcff",
    "~nosuchuser/x",
    "a\nb",
    "\x1b[31m",
    "../../../../etc/passwd",
    "/dev/null/x",
    "%s%n{}",
    "*",
    "",
    "\N{RIGHT-TO-LEFT OVERRIDE}",
    "-",
)
TEXTS: tuple[tuple[str, ...], ...] = (
    ("bench", "--dry-run", "--only"),
    ("bench", "--dry-run", "--only", "kernels/matmul", "--candidate"),
    ("bench", "--dry-run", "--only", "kernels/matmul", "--target"),
    ("bench", "--dry-run", "--only", "kernels/matmul", "--cores"),
    ("bench", "--dry-run"),
    ("sweep", "--plan", "--suites"),
    ("sweep", "--plan", "--shard"),
    ("sweep", "--resume"),
    ("sweep", "show"),
    ("build", "--plan"),
    ("build", "openblas", "--plan", "--set"),
    ("build", "openblas", "--plan", "--variant"),
    ("build", "rebuild"),
    ("build", "clean"),
    ("doctor",),
    ("tune", "--dry-run"),
    ("tune", "kernels/matmul", "--dry-run", "--space"),
    ("gate", "--baseline"),
    ("report",),
    ("compare", "latest"),
    ("history", "--since"),
    ("history", "--alpha"),
    ("results", "show"),
    ("results", "list", "--since"),
    ("results", "import"),
    ("results", "import", "x", "--max-size"),
    ("results", "note"),
    ("results", "delete", "--yes"),
    ("serve", "--host"),
    ("target",),
    ("explain",),
    ("completion",),
    ("values", "show"),
    ("machine", "quiet", "--frequency"),
    ("",),
)


@pytest.mark.parametrize("words", TEXTS, ids=" ".join)
def test_unusual_text(capsys: Capture, words: tuple[str, ...]) -> None:
    for text in WORDS:
        arguments = (*words[:-1], text) if words == ("",) else (*words, text)
        with limited():
            completed = call(capsys, *arguments)
        assert completed.code in REFUSED | {0}, (arguments[:-1], text[:50], completed.err[:1500])
        assert "Traceback" not in completed.err
        assert "\x1b" not in completed.err
        assert len(completed.err) < 20_000, (arguments[:-1], text[:50])
        if completed.code:
            assert "hint: " in completed.err, (arguments[:-1], text[:50], completed.err)


def test_keys_of_a_recipe_of_a_wrong_type(tmp_path: Path, capsys: Capture) -> None:
    from dataclasses import fields

    from torchyard.builds.recipe import Recipe

    keys = [field.name.replace("_", "-") for field in fields(Recipe)]
    keys += ["when", "variants", "default-variant"]
    values: list[str] = [
        "5",
        "true",
        "nan",
        '"x"',
        "[]",
        "[1]",
        '["x"]',
        "[[1]]",
        "{}",
        "{x = 1}",
        "[{}]",
    ]
    values += ("[{if = 5}]", "[{if = {release = 5}}]", "[{if = {machine = [[1]]}}]", "1979-05-27")
    values += ('[{if = {source = "git"}, source = 5}]', '[{if = {environment = "venv"}}]')
    path = tmp_path / "mine.toml"
    for key in keys:
        for value in values:
            path.write_text(f"{key} = {value}\n")
            with limited():
                completed = call(capsys, "build", str(path), "--plan")
            assert completed.code in REFUSED | {0}, (key, value, completed.err)
            assert "hint: " in completed.err or completed.code == 0, (key, value, completed.err)


@pytest.mark.parametrize("condition", ["source", "environment", "machine", "variant", "release"])
def test_a_recipe_whose_when_meets_tables_of_a_wrong_type(
    tmp_path: Path, capsys: Capture, condition: str
) -> None:
    path = tmp_path / "mine.toml"
    for table in ("source", "environment", "options"):
        for value in ("5", '"x"', "[1]", "true"):
            path.write_text(f'{table} = {value}\n[[when]]\nif = {{{condition} = "x"}}\n')
            check(capsys, ("build", str(path), "--plan"))


def test_keys_of_a_study_of_a_wrong_type(tmp_path: Path, capsys: Capture) -> None:
    from dataclasses import fields

    from torchyard.bench.study_file import StudyFile

    values = ("5", "true", '"x"', "[]", "[1]", '["x"]', "[[1]]", "{}", "{x = 1}", "[{}]", "[{x=1}]")
    path = tmp_path / "mine.toml"
    for field in fields(StudyFile):
        for value in values:
            path.write_text(f"{field.name.replace('_', '-')} = {value}\n")
            for command in (("bench", str(path), "--dry-run"), ("sweep", str(path), "--plan")):
                with limited():
                    completed = call(capsys, *command)
                assert completed.code in REFUSED | {0}, (field.name, value, completed.err)
                assert "hint: " in completed.err or completed.code == 0, (
                    field.name,
                    value,
                    completed.err,
                )
