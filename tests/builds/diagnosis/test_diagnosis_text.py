"""The diagnosis as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.model import Diagnosis, describe
from torchyard.core.records import decode, encode
from torchyard.errors import NotAllowed, UsageError

LOGS = Path(__file__).parent / "logs"


def test_a_known_cause_is_described_completely() -> None:
    assert describe(diagnose(LOGS / "object-file-damaged.log")) == (
        """\
An object file or library is damaged: CMakeFiles/w.dir/w.cpp.o [object-file-damaged]
  line 6: /usr/bin/ld: error: CMakeFiles/w.dir/w.cpp.o: file too short

Why: CMakeFiles/w.dir/w.cpp.o is incomplete: an earlier build was killed, or the disk was full.

Fix:
  - Remove that file; the next build creates it again. If several are damaged, rebuild the
    component from clean.

Commands:
    rm -- CMakeFiles/w.dir/w.cpp.o

Failed command (line 4): w
  : && /usr/bin/c++   CMakeFiles/w.dir/w.cpp.o -o w  liba.a && :"""
    )


def test_an_unknown_cause_shows_the_first_error_and_the_command() -> None:
    text = describe(diagnose(LOGS / "unknown-nvcc-syntax.log"))
    assert text.startswith("The cause is unknown.\n\nFirst error (compiler), line 8")
    assert 'lltm.cu(2): error: expected a ";"' in text
    assert "Failed command (line 6, exit code 2): /build/lltm/build/temp" in text
    assert text.rstrip().endswith("...")


def test_consequences_and_losses_come_after() -> None:
    text = describe(diagnose(LOGS / "nvcc-killed.log"))
    head, tail = text.split("Also found:")
    assert "[nvcc-out-of-memory]" in head
    assert "[process-killed, consequence of nvcc-out-of-memory]" in tail


def test_a_loss_is_described_completely_when_there_is_not_an_error() -> None:
    text = describe(diagnose(LOGS / "blas-fallback.log"))
    assert text.startswith("No failure found in the 77 lines of the log.")
    assert "PyTorch is built without the intended BLAS [blas-fallback]" in text
    assert "Fix:" in text


def test_a_log_without_any_error_is_reported() -> None:
    for text, lines in (("all\nis\nwell\n", 3), ("", 0)):
        assert describe(diagnose(text)) == f"No failure found in the {lines} lines of the log."
        told = describe(diagnose(text, exit_code=1))
        assert told == f"No error found in the {lines} lines of the log."


def test_an_exit_code_alone_is_reported_without_a_line() -> None:
    text = describe(diagnose("", exit_code=137))
    assert "\n  exit code 137\n" in text
    assert "line 0" not in text


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_descriptions_are_clean_text(path: Path) -> None:
    text = describe(diagnose(path))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert not any(line != line.rstrip() for line in text.split("\n"))


def test_control_characters_of_a_log_never_reach_the_terminal() -> None:
    log = "x.c:1:1: error: \x1b[2J\x1b]0;owned\x07 \x07\x08\x9b31m bad\n"
    text = describe(diagnose(log))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "owned" not in text


def test_a_diagnosis_survives_json() -> None:
    found = diagnose(LOGS / "nvcc-killed.log", exit_code=-9, release="2.6", machine="x86_64")
    again = decode(Diagnosis, json.loads(json.dumps(encode(found))), where="")
    assert again == found
    assert again.exit_code == 137
    assert again.log.endswith("nvcc-killed.log")


def test_a_missing_log_a_folder_and_a_forbidden_one_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no log"):
        diagnose(tmp_path / "none.log")
    with pytest.raises(UsageError, match="is a folder"):
        diagnose(tmp_path)
    secret = tmp_path / "secret.log"
    secret.write_text("x", encoding="utf-8")
    secret.chmod(0)
    try:
        secret.read_bytes()
    except PermissionError:
        with pytest.raises(NotAllowed, match="cannot read"):
            diagnose(secret)
