"""`workloads`, `explain` and `completion`, and the pages written from the commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import call, program
from torchyard.cli.commands import COMMANDS
from torchyard.cli.explain import load_explanations, load_synonyms
from torchyard.core.comparison import AccuracyStatus, Verdict
from torchyard.errors import EXIT_CODES
from torchyard.machine.guards.block_check import REASONS
from torchyard.process.ending import FAILURE_KINDS
from torchyard.sweep.join import FAILURE_KINDS as FAILURE_OF_CELL
from torchyard.sweep.model import ENDS
from torchyard.worker.catalog import OPEN_SUITES, SUITES

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden"


def test_workloads_lists_the_catalogue(capsys: Capture) -> None:
    completed = call(capsys, "workloads")
    for suite, entries in SUITES.items():
        for entry in entries:
            assert f"{suite}/{entry.name} " in completed.out
    for suite in OPEN_SUITES:
        assert f"{suite}/NAME" in completed.out


def test_workloads_of_one_suite(capsys: Capture) -> None:
    out = call(capsys, "workloads", "--suite", "models").out
    assert "models/gpt" in out
    assert "kernels/" not in out
    assert call(capsys, "workloads", "--suite", "timm").out.startswith("timm/NAME")


def test_workloads_of_a_list_with_modes_and_batch_sizes(capsys: Capture) -> None:
    lines = call(capsys, "workloads", "--suite", "huggingface").out.splitlines()
    assert lines[0].endswith("; 56 listed")
    assert len(lines) == 2 + 56
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    bert = "inference, training GPU 16 CPU 16 BERT base"
    assert rows["huggingface/BertForMaskedLM"] == bert.split()
    assert rows["huggingface/gpt-oss-20b"][:5] == ["inference", "GPU", "1", "CPU", "1"]
    timm = call(capsys, "workloads", "--suite", "timm").out.splitlines()
    assert sum(" GPU    - " in line for line in timm) == 58 - 18
    assert sum(" CPU    - " in line for line in timm) == 58 - 54
    document = call(capsys, "workloads", "--suite", "torchvision", "--json").document
    assert list(document["lists"]) == ["torchvision"]
    entries = {each["name"]: each for each in document["lists"]["torchvision"]}
    assert entries["resnet50"]["gpu_batch_size"] == 128
    assert entries["resnet50"]["modes"] == ["inference", "training"]


def test_workloads_as_json(capsys: Capture) -> None:
    document = call(capsys, "workloads", "--json").document
    assert document["schema"] == 1
    first = document["suites"]["kernels"][0]
    assert (first["name"], first["parameters"]) == ("matmul", {"size": 1000})


def test_everything_with_a_code_or_a_verdict_is_explained() -> None:
    explained = {*load_explanations(), *load_synonyms()}
    terms = [
        *map(str, EXIT_CODES),
        *Verdict,
        *AccuracyStatus,
        *FAILURE_KINDS,
        *ENDS,
        *FAILURE_OF_CELL.values(),
        "no-start",
        "node-failed",
        "memory-limit",
        "cancelled",
        "refused",
    ]
    terms += [
        reason.lower().replace(" ", "-") for reason in ("noisy machine", "untrusted", *REASONS)
    ]
    terms += ["target", "workload", "suite", "variant", "launch", "block", "pair", "comparison"]
    terms += ["verdict", "run", "study"]
    assert [term for term in terms if term not in explained] == []


def test_every_synonym_leads_to_an_entry() -> None:
    entries = load_explanations()
    for synonym, term in load_synonyms().items():
        assert term in entries, synonym
        assert synonym not in entries
        assert synonym == synonym.lower().replace("_", "-").replace(" ", "-")


@pytest.mark.parametrize(
    ("synonym", "title"),
    [
        ("CI", "confidence-interval (term)"),
        ("95 % CI", "confidence-interval (term)"),
        ("p-value", "p (column)"),
        ("geometric mean", "geometric-mean (column)"),
        ("busy", "noisy-machine (note)"),
        ("noisy", "noisy-machine (note)"),
        ("passed", "passed (result of a sweep row)"),
        ("hung", "hung (result of a sweep row)"),
        ("not finished", "not-finished (result of a sweep row)"),
        ("non-deterministic", "nondeterministic (accuracy)"),
        ("recompilation", "recompilations (note)"),
        ("graph break", "graph-breaks (note)"),
    ],
)
def test_explain_knows_standard_terms(capsys: Capture, synonym: str, title: str) -> None:
    assert call(capsys, "explain", synonym).out.startswith(f"{title}: ")


def test_explanations_are_whole_sentences() -> None:
    for word, entry in load_explanations().items():
        assert set(entry) == {"kind", "short", "text"}
        assert entry["text"].endswith("."), word
        assert len(entry["short"]) <= 60, word


def test_explain_one_word_in_any_spelling(capsys: Capture) -> None:
    text = call(capsys, "explain", "out-of-memory").out
    assert text.startswith("out-of-memory (failure kind): ")
    assert call(capsys, "explain", "Out_of_Memory").out == text
    assert call(capsys, "explain", "out of memory").out == text


def test_explain_a_known_cause_of_failed_builds(capsys: Capture) -> None:
    text = call(capsys, "explain", "cmake-too-new").out
    assert text.startswith("cmake-too-new (build failure, fatal): This CMake no longer")
    assert "CMAKE_POLICY_VERSION_MINIMUM=3.5" in text
    assert "pytorch#150149" in text


def test_explain_as_json(capsys: Capture) -> None:
    document = call(capsys, "explain", "6", "--json").document
    assert (document["schema"], document["word"], document["kind"]) == (1, "6", "exit code")
    assert "faster" in call(capsys, "explain", "--json").document["explanations"]


@pytest.mark.parametrize(
    ("words", "cword", "wanted"),
    [
        ("torchyard be", "1", ["plain,bench"]),
        (
            "torchyard bench --ba",
            "2",
            ["plain,--batch-size", "plain,--baseline", "plain,--backend"],
        ),
        ("torchyard bench --mode tr", "3", ["plain,training"]),
        ("torchyard report --format ht", "3", ["plain,html"]),
        ("torchyard completion f", "2", ["plain,fish"]),
    ],
)
def test_completion_answers(words: str, cword: str, wanted: list[str]) -> None:
    completed = program(_TORCHYARD_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=cword)
    assert completed.out.split() == wanted
    assert completed.err == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(capsys: Capture, shell: str) -> None:
    completed = call(capsys, "completion", shell)
    assert completed.code == 0
    assert "_TORCHYARD_COMPLETE" in completed.out
    document = call(capsys, "completion", shell, "--json").document
    assert document["script"].strip() == completed.out.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_works_in_bash(tmp_path: Path) -> None:
    starter = tmp_path / "torchyard"
    starter.write_text(f'#!/bin/sh\nexec {sys.executable} -m torchyard "$@"\n')
    starter.chmod(0o755)
    script = (
        'eval "$(torchyard completion bash)"\n'
        "COMP_WORDS=(torchyard work)\nCOMP_CWORD=1\n"
        "_torchyard_completion torchyard\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    completed = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert completed.stdout == "workloads\n"


def _command_lines() -> Iterator[list[str]]:
    """Every command and subcommand, as the words that a user types."""
    import click

    from torchyard.cli.group import program

    def below(command: click.Command, words: list[str]) -> Iterator[list[str]]:
        yield words
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                yield from below(child, [*words, name])

    yield from below(program, [])


@pytest.mark.parametrize("words", list(_command_lines()), ids=" ".join)
def test_help_starts_with_examples(capsys: Capture, words: list[str]) -> None:
    """The text itself is pinned by docs/reference/commands.md, which is generated from it."""
    completed = call(capsys, *words, "--help")
    assert completed.code == 0
    assert completed.out.index("Examples:") < 140
    assert max(map(len, completed.out.splitlines())) <= 100


def test_the_reference_pages_are_fresh() -> None:
    completed = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, f"{completed.stdout}{completed.stderr}\nrun `make docs`"


def test_the_reference_names_every_option() -> None:
    import click

    from torchyard.cli.group import program as group

    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        for parameter in command.params:
            for word in (*parameter.opts, *parameter.secondary_opts):
                assert not word.startswith("--") or word in page
