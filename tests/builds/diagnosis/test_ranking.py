"""Which causes apply, their order, and values of a log in texts and commands."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.diagnosis.diagnose import BuildFacts, _command, diagnose, rank
from torchyard.builds.diagnosis.matching import CompiledSignatures, Detection, Matcher
from torchyard.builds.diagnosis.model import Cause
from torchyard.builds.diagnosis.signature import Case, Level, Signature


def signature(
    name: str,
    *,
    level: Level = "fatal",
    explains: tuple[str, ...] = (),
    all_: tuple[str, ...] = (),
    window: int = 20,
    machines: tuple[str, ...] = (),
    since: str = "",
    before: str = "",
    cases: tuple[Case, ...] = (),
) -> Signature:
    return Signature(
        id=name,
        title=name,
        cause="c.",
        remedy=("r.",),
        any=(f"sign of {name}",),
        all=all_,
        window=window,
        level=level,
        explains=explains,
        machines=machines,
        since=since,
        before=before,
        cases=cases,
    )


def causes(
    signatures: list[Signature],
    lines: dict[int, str],
    facts: BuildFacts | None = None,
    failed: tuple[int, ...] = (),
) -> list[Cause]:
    matcher = Matcher(CompiledSignatures(signatures))
    every = list(matcher.patterns.by_fragment)
    for line, text in lines.items():
        found = [fragment for fragment in every if fragment in text.lower().encode()]
        matcher.process(line, text, found, in_failed_block=line in failed)
    return list(rank(signatures, matcher.detections, facts or BuildFacts()))


def ids(found: list[Cause]) -> list[str]:
    return [cause.id for cause in found]


def test_levels_come_before_lines() -> None:
    kinds: list[Level] = ["notice", "loss", "general", "fatal"]
    signatures = [signature(f"the-{level}", level=level) for level in kinds]
    lines = {n: f"sign of the-{level}" for n, level in enumerate(kinds, 1)}
    assert ids(causes(signatures, lines)) == ["the-fatal", "the-general", "the-loss", "the-notice"]


def test_the_earlier_of_two_comes_first_unless_the_later_is_in_a_failed_block() -> None:
    signatures = [signature("first"), signature("second")]
    lines = {3: "sign of second", 9: "sign of first"}
    assert ids(causes(signatures, lines)) == ["second", "first"]
    assert ids(causes(signatures, lines, failed=(9,))) == ["first", "second"]


def test_a_consequence_comes_last_whatever_its_level_and_line() -> None:
    signatures = [
        signature("effect"),
        signature("root", level="general", explains=("effect",)),
        signature("other", level="loss"),
    ]
    found = causes(signatures, {1: "sign of effect", 2: "sign of root", 3: "sign of other"})
    assert ids(found) == ["root", "other", "effect"]
    assert found[-1].consequence_of == "root"


def test_a_general_cause_of_the_same_lines_is_omitted() -> None:
    signatures = [signature("special"), signature("broad", level="general")]
    both = "sign of special and sign of broad"
    assert ids(causes(signatures, {1: both})) == ["special"]
    assert ids(causes(signatures, {1: both, 5: "sign of broad"})) == ["special", "broad"]


def test_matches_are_counted_and_the_first_lines_kept() -> None:
    (found,) = causes([signature("many")], dict.fromkeys(range(1, 51), "sign of many"))
    assert found.matches == 50
    assert [evidence.line for evidence in found.evidence] == [1, 2, 3]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({10: "sign of near", 14: "company"}, True),
        ({10: "company", 14: "sign of near"}, True),
        ({10: "sign of near and company"}, True),
        ({10: "sign of near", 16: "company"}, False),
        ({10: "sign of near", 14: "sign of near", 18: "company"}, True),
        ({10: "company", 13: "sign of near", 30: "sign of near"}, True),
        ({10: "sign of near"}, False),
        ({10: "company"}, False),
    ],
)
def test_other_patterns_must_match_nearby(lines: dict[int, str], *, expected: bool) -> None:
    wanted = signature("near", all_=("company",), window=5)
    assert bool(causes([wanted], lines)) is expected


def test_a_window_of_zero_is_the_whole_log() -> None:
    wanted = signature("far", all_=("company", "another"), window=0)
    lines = {1: "company", 5000: "sign of far", 90_000: "another"}
    assert ids(causes([wanted], lines)) == ["far"]
    del lines[90_000]
    assert causes([wanted], lines) == []


@pytest.mark.parametrize(
    ("release", "applies"),
    [("", True), ("2.5", False), ("2.6", True), ("v2.6.1", True), ("2.13.0a0+git1", True),
     ("2.14", False), ("2.14.1", False), ("main", True)],
)  # fmt: skip
def test_releases_of_a_signature(release: str, *, applies: bool) -> None:
    wanted = signature("some", since="2.6", before="2.14")
    found = causes([wanted], {1: "sign of some"}, BuildFacts(release=release))
    assert bool(found) is applies


def test_machines_of_a_signature() -> None:
    wanted = signature("arm", machines=("aarch64", "arm64"))
    for machine, applies in (("", True), ("aarch64", True), ("x86_64", False)):
        found = causes([wanted], {1: "sign of arm"}, BuildFacts(machine=machine))
        assert bool(found) is applies


def test_advice_for_other_releases_is_omitted_and_unknown_ones_are_reported() -> None:
    wanted = signature(
        "some",
        cases=(
            Case(before="2.14", remedy=("Old way.",), commands=("old",)),
            Case(since="2.14", remedy=("New way.",), commands=("new",)),
        ),
    )
    lines = {1: "sign of some"}
    (old,) = causes([wanted], lines, BuildFacts(release="2.6"))
    assert (old.remedy, old.commands) == (("r.", "Old way."), ("old",))
    (new,) = causes([wanted], lines, BuildFacts(release="2.15.0"))
    assert (new.remedy, new.commands) == (("r.", "New way."), ("new",))
    (unknown,) = causes([wanted], lines)
    assert unknown.remedy == (
        "r.",
        "Before release 2.14: Old way.",
        "From release 2.14 on: New way.",
    )
    assert unknown.commands == ()


@pytest.mark.parametrize(
    ("code", "cause"),
    [(137, "process-killed"), (-9, "process-killed"), (124, "time-limit"), (130, "interrupted"),
     (-2, "interrupted"), (132, "illegal-instruction"), (139, "program-crashed")],
)  # fmt: skip
def test_an_exit_code_is_enough(code: int, cause: str) -> None:
    found = diagnose("nothing to see\n", exit_code=code)
    assert found.root is not None
    assert found.root.id == cause
    assert found.root.evidence[0].line == 0
    assert str(128 - code if code < 0 else code) in found.root.evidence[0].text


def test_a_line_says_more_than_an_exit_code() -> None:
    killed = "c++: fatal error: Killed signal terminated program cc1plus\n"
    found = diagnose(killed, exit_code=137)
    assert [cause.id for cause in found.causes] == ["compiler-out-of-memory", "process-killed"]
    assert found.causes[1].consequence_of == "compiler-out-of-memory"


def test_a_step_that_succeeded_has_only_losses() -> None:
    log = "CMake Warning at a:1 (message):\n  MKL could not be found.  Defaulting to Eigen\n\n"
    log += "tool: No space left on device\n"
    assert diagnose(log).causes[0].id == "disk-full"
    assert [cause.id for cause in diagnose(log, exit_code=0).causes] == ["blas-fallback"]


def test_a_general_cause_behind_an_unknown_error_is_not_the_root() -> None:
    syntax = "a.cpp:3:3: error: expected ';' before 'return'\n"
    broad = "a.cpp:5:1: error: no return statement [-Werror=return-type]\n"
    assert [cause.id for cause in diagnose(syntax + broad).causes] == ["warnings-as-errors"]
    assert diagnose(syntax + broad).root is None
    assert diagnose(broad + syntax).root is not None
    assert diagnose(syntax, exit_code=137).root is None
    weak = "collect2: error: ld returned 1 exit status\n"
    assert diagnose(weak, exit_code=137).root is not None


def test_names_that_an_offline_build_wanted_are_reported() -> None:
    found = diagnose("quiet failure\n", wanted_names=("github.com", "pypi.org"))
    assert found.root is not None
    assert found.root.id == "network-wanted"
    assert "github.com, pypi.org" in found.root.title
    assert [evidence.line for evidence in found.root.evidence] == [0, 0]


def test_wanted_names_alone_do_not_outrank_what_the_log_shows() -> None:
    log = "a.cpp:1:10: fatal error: png.h: No such file or directory\n"
    found = diagnose(log, wanted_names=("telemetry.example.org",))
    assert [cause.id for cause in found.causes] == ["header-missing", "network-wanted"]


def test_a_warning_of_apt_is_not_a_denied_permission() -> None:
    warning = "W: Download is performed unsandboxed as root (13: Permission denied)\n"
    assert diagnose(warning).causes == ()
    assert diagnose(warning[3:]).causes[0].id == "permission-denied"


def test_names_that_are_no_names_are_not_repeated() -> None:
    assert diagnose("x\n", wanted_names=("$(rm -rf /)", "a b")).causes == ()


HOSTILE = ["$(touch pwned)", "a'b", "a;b", "x y", "`id`", 'q"q', "a\\b", "|cat", "&&x", "~", "*"]


@pytest.mark.parametrize("value", HOSTILE)
def test_captured_values_are_one_word_of_a_command(value: str) -> None:
    command = _command("printf %s {value}", {"value": value})
    assert shlex.split(command) == ["printf", "%s", value]
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert shown.stdout == value


@pytest.mark.parametrize("value", ["-rf", "--exec=x", "a\nb", "a\x1b[2J"])
def test_a_value_that_could_act_otherwise_drops_the_command(value: str) -> None:
    assert _command("rm -- {value}", {"value": value}) == ""


@given(st.text(max_size=40))
def test_any_value_is_one_word_or_no_command(value: str) -> None:
    command = _command("rm -- {value}", {"value": value})
    assert command == "" or shlex.split(command) == ["rm", "--", value]


def test_a_hostile_log_gives_no_hostile_command() -> None:
    log = "/usr/bin/ld: error: $(reboot);x.o: file too short\n"
    found = diagnose(log).root
    assert found is not None
    assert found.id == "object-file-damaged"
    assert found.commands == ("rm -- '$(reboot);x.o'",)


def test_of_a_long_line_the_part_that_was_recognised_is_quoted() -> None:
    (found,) = causes([signature("deep")], {1: "x" * 2000 + " sign of deep " + "y" * 2000})
    quoted = found.evidence[0].text
    assert quoted.startswith("... x")
    assert "sign of deep" in quoted
    assert len(quoted) < 420
    (found,) = causes([signature("early")], {1: "sign of early " + "y" * 2000})
    assert found.evidence[0].text.startswith("sign of early")


def test_the_record_of_a_sighting_stays_small() -> None:
    signatures = [signature("endless")]
    matcher = Matcher(CompiledSignatures(signatures))
    for line in range(1, 5000):
        matcher.process(line, "sign of endless", [b"sign of endless"])
    (detection,) = matcher.detections.values()
    assert isinstance(detection, Detection)
    assert len(detection.lines) <= 200
    assert len(detection.evidence) == 3


def first_ids(log: str) -> list[str]:
    return [cause.id for cause in diagnose(log).causes]


def test_a_missing_nvcc_is_not_a_missing_cc() -> None:
    assert first_ids("/bin/sh: 1: nvcc: not found\n") == ["cuda-not-found"]
    assert first_ids("/bin/sh: 1: cc: not found\n") == ["compiler-missing"]


def test_an_optional_package_that_is_missing_is_not_a_cause() -> None:
    message = (
        "CMake {kind} at cmake/Dependencies.cmake:9 (find_package):\n"
        '  By not providing "FindCUSPARSELT.cmake" CMake did not find one.\n\n'
        "  Could not find a package configuration file provided by\n"
        '  "CUSPARSELT" with any of the following names:\n\n'
    )
    assert first_ids(message.format(kind="Warning")) == []
    assert first_ids(message.format(kind="Error")) == ["cmake-package-missing"]


def test_a_cuda_build_that_mentions_rocm_is_not_a_rocm_build() -> None:
    header = "x.cu:1:10: fatal error: 'cuda_runtime.h' file not found\n"
    assert first_ids(f"--   USE_ROCM              : OFF\n{header}") == ["header-missing"]
    assert first_ids(f"--   USE_ROCM              : ON\n{header}") == ["hipify-skipped"]


def test_a_broken_off_link_is_reported_apart_from_a_broken_off_compile() -> None:
    link = "collect2: fatal error: ld terminated with signal 9 [Killed]\n"
    compile_ = "g++: fatal error: Killed signal terminated program cc1plus\n"
    assert first_ids(link) == ["linker-out-of-memory"]
    assert first_ids(compile_) == ["compiler-out-of-memory"]
    assert first_ids("g++: internal compiler error: Killed (program cc1plus)\n") == [
        "compiler-out-of-memory"
    ]
