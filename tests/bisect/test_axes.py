"""`torchyard bisect` over settings and releases, for memory and failures, on real processes."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bisect.git_project import make_project
from tests.cli.command_line import CompletedCommand, call

Capture = pytest.CaptureFixture[str]
ODD = "<script>alert('x')</script>|`@all`"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def bisect(capsys: Capture, *options: str) -> CompletedCommand:
    return call(capsys, "bisect", "--time", "120s", *options)


def script(tmp_path: Path, text: str) -> str:
    (tmp_path / "bench.sh").write_text(text, encoding="utf-8")
    return "sh bench.sh"


PAIR = """
if [ "$A" = new ] && [ -z "$C" ]; then echo torchyard: 0.7; else echo torchyard: 0.5; fi
"""


def test_two_variables_that_matter_together(capsys: Capture, tmp_path: Path) -> None:
    command = script(tmp_path, PAIR)
    settings = ["--settings", f"A=old B=1 C=1 D='{ODD}' E=same", f"A=new B=2 D='{ODD}2' E=same F=1"]
    options = [*settings, "--command", command, "--metric", "printed"]
    document = bisect(capsys, *options, "--json", "-q").document
    assert {one["name"] for one in document["settings"]} == {"A", "C"}
    assert document["interaction"] is True
    assert document["effect"]["low"] <= 1.4 + 1e-3
    assert document["effect"]["high"] >= 1.4 - 1e-3
    ended = bisect(capsys, *options)
    assert ended.code == 0
    assert "resumed after" in ended.err
    assert "C: 1 -> (unset)" in ended.out
    assert "They interact" in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= 80


def test_settings_files_with_values(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[values]\nspeed = 5\nother = "x"\n', encoding="utf-8")
    (tmp_path / "b.toml").write_text('[values]\nspeed = 7\nother = "y"\n', encoding="utf-8")
    command = script(tmp_path, 'test "$1" = x || test "$1" = y || exit 1\necho torchyard: 0.$2\n')
    document = bisect(
        capsys,
        *("--settings", "a.toml", "b.toml", "--metric", "printed", "--json"),
        *("--command", f"{command} {{other}} {{speed}}"),
    ).document
    assert [one["name"] for one in document["settings"]] == ["speed"]


def make_wheel(folder: Path, version: str, body: str, package: str = "tinypackage") -> None:
    name = f"{package}-{version}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{package}.py", body)
        info = f"{name}.dist-info"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels of 1.0 to 1.5, slower since 1.3; 1.2 cannot be imported."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for minor in range(6):
        body = f"print('torchyard:', {0.5 if minor < 3 else 0.6})\n"
        make_wheel(folder, f"1.{minor}", "raise ImportError('broken')\n" if minor == 2 else body)
    make_wheel(folder, "0.9", "print('torchyard:', 9)\n")
    make_wheel(folder, "2.0", "print('torchyard:', 9)\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    return folder


def test_releases(capsys: Capture, wheels: Path) -> None:
    options = ["--releases", "tinypackage:1.0..1.5", "--metric", "printed"]
    options += ["--command", "{python} -c 'import tinypackage'"]
    first = bisect(capsys, *options, "--json")
    assert "making an environment with tinypackage==1.0\n" in first.err
    document = first.document
    assert [one["commit"] for one in document["candidates"]][-1] == "1.3"
    assert set(document["posterior"]["single"]) <= {"1.1", "1.2", "1.3", "1.4", "1.5"}
    for one in document["skipped"]:
        assert one["commit"] == "1.2"
        assert "broken" in one["why"]
    # A second search uses the same environments: no wheel is needed.
    for wheel in wheels.iterdir():
        wheel.unlink()
    listed = ["--releases", "tinypackage:1.3,1.1", *options[2:]]
    ended = bisect(capsys, *listed)
    assert ended.code == 0, ended.err
    assert "making an environment" not in ended.err
    assert "1.3  tinypackage" in ended.out or "1.3 tinypackage" in ended.out


def test_packages_as_settings(capsys: Capture, tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[packages]\ntinypackage = "1.1"\n[variables]\nX = "1"\n', "utf-8"
    )
    (tmp_path / "b.toml").write_text(
        '[packages]\ntinypackage = "1.4"\n[variables]\nX = "2"\n', "utf-8"
    )
    document = bisect(
        capsys,
        *("--settings", "a.toml", "b.toml", "--metric", "printed", "--json"),
        *("--command", "{python} -c 'import tinypackage'"),
    ).document
    assert [one["name"] for one in document["settings"]] == ["tinypackage"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("tinypackage", 2),
        ("tinypackage:1.5..1.0", 2),
        ("tiny package:1..2", 2),
        ("x:a..b", 2),
        ("--no-index:1..2", 2),
        ("tinypackage:3..4", 3),
        ("missingpackage:1..2", 5),
    ],
)
def test_releases_that_do_not_exist(capsys: Capture, wheels: Path, text: str, code: int) -> None:
    ended = bisect(capsys, f"--releases={text}", "--command", "true")
    assert ended.code == code, ended.err


def test_a_release_that_pip_cannot_install(capsys: Capture, wheels: Path) -> None:
    (wheels / "tinypackage-1.5-py3-none-any.whl").unlink()
    ended = bisect(
        capsys, "--releases", "tinypackage:1.0,1.5", "--command", "{python} -c 'import tinypackage'"
    )
    assert ended.code == 5
    assert "the bad release 1.5 cannot be measured" in ended.err
    assert "pip install" in ended.err


def test_memory(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text("import os\nx = b'x' * (1 << 20) * int(os.environ['M'])\n")
    command = f"{sys.executable} -I -S -c \"import os; x = b'x' * (int(os.environ['M']) << 20)\""
    settings = ["--settings", "M=100 N=1 O=1", "M=200 N=2 O=2", "--metric", "memory"]
    document = bisect(capsys, *settings, "--command", command, "--json").document
    assert [one["name"] for one in document["settings"]] == ["M"]
    assert 1.5 < document["effect"]["ratio"] < 2.0
    ended = bisect(capsys, *settings, "--command", command)
    assert re.search(r"effect +\+\d+\.\d% memory \(95 % CI", ended.out)


def test_failures_of_revisions(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    bodies = ["exit 0", "exit 0", "exit 125", "exit 0", "exit 0", "exit 3", "kill -11 $$", "exit 1"]
    commits = make_project(folder, [{"bench.sh": f"{body}\n"} for body in bodies])
    options = ["--repo", str(folder), "--good", commits[0], "--command", "sh bench.sh"]
    document = bisect(capsys, *options, "--metric", "failure", "--json").document
    assert [one["commit"] for one in document["candidates"]] == [commits[5]]
    assert {one["commit"] for one in document["skipped"]} <= {commits[2]}
    good, bad = document["failed_runs"]
    assert good[0] == 0
    assert bad[0] == bad[1] >= 3
    ended = bisect(capsys, *options, "--metric", "failure")
    assert "bad failed in" in ended.out


def test_failures_of_settings(capsys: Capture, tmp_path: Path) -> None:
    command = script(tmp_path, '[ "$A$D" != 22 ]\n')
    settings = ["--settings", "A=1 B=1 C=1 D=1", "A=2 B=2 C=2 D=2", "--metric", "failure"]
    document = bisect(capsys, *settings, "--command", command, "--json").document
    assert {one["name"] for one in document["settings"]} == {"A", "D"}


def test_ends_that_fail_alike(capsys: Capture, tmp_path: Path) -> None:
    settings = ["--settings", "A=1", "A=2", "--metric", "failure"]
    ended = bisect(capsys, *settings, "--command", "false")
    assert ended.code == 3
    assert re.search(r"good failed in (\d+) of \1 runs, bad in \1 of \1", ended.err)


def test_page_and_issue_text_are_escaped(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    bodies = ["echo torchyard: 0.5\n", "echo torchyard: 0.5\n", "echo torchyard: 0.7\n"]
    subjects = [f"{ODD} {number}" for number in range(3)]
    commits = make_project(folder, [{"bench.sh": body} for body in bodies], subjects)
    ended = bisect(
        capsys,
        *("--repo", str(folder), "--good", commits[0], "--metric", "printed", "--json"),
        *(
            "--command",
            f"sh bench.sh {tmp_path}/private",
            "--html",
            "a.html",
            "--issue",
            "a.md",
        ),
    )
    assert ended.code == 0, ended.err
    page, issue = ((tmp_path / name).read_text("utf-8") for name in ("a.html", "a.md"))
    assert "<script" not in page + issue
    assert "&lt;script&gt;" in page
    assert commits[2][:10] in page
    assert commits[2] in issue
    assert "+40.0% time" in page
    assert "+40.0% time" in issue
    assert "@all" not in issue
    assert str(tmp_path) not in issue


def test_page_and_issue_text_of_settings(capsys: Capture, tmp_path: Path) -> None:
    command = script(tmp_path, PAIR)
    settings = ["--settings", f"A=old C=1 D='{ODD}'", f"A=new D='{ODD}2'"]
    files = ["--html", "a.html", "--issue", "a.md"]
    bisect(capsys, *settings, "--command", command, "--metric", "printed", *files)
    page, issue = ((tmp_path / name).read_text("utf-8") for name in ("a.html", "a.md"))
    assert "<script" not in page + issue
    for text in (page, issue):
        assert "A: old -&gt; new" in text
        assert "+40.0% time" in text


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--good", "HEAD", "--releases", "a:1..2"],
        ["--settings", "A=1", "A"],
        ["--settings", "A=1", "B-C=1"],
        ["--settings", "A='1", "A=2"],
        ["--settings", "missing.toml", "A=2"],
        ["--settings", "A=1", "A=2", "--setup", "true"],
    ],
)
def test_options_that_are_refused(capsys: Capture, options: list[str]) -> None:
    ended = bisect(capsys, *options, "--command", "true")
    assert ended.code == 2, ended.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--command", "true", "--workload", "kernels/softmax"], "one of --command and --workload"),
        ([], "one of --command and --workload"),
        (["--command", "true", "--metric", "accuracy"], "--metric accuracy needs --workload"),
        (["--command", "true", "--metric", "compile-time"], "needs --workload"),
        (["--command", "true", "--why"], "--why needs --workload"),
        (["--command", "true", "--variant", "inductor"], "--variant needs --workload"),
        (["--workload", "kernels/softmax", "--metric", "printed"], "does not apply to --workload"),
        (["--workload", "kernels/softmax", "--metric", "memory", "--why"], "not apply to --why"),
        (["--workload", "kernels/softmax", "--metric", "compile-time"], "eager code is not"),
        (["--workload", "kernels/no-such-kernel"], "no-such-kernel"),
        (["--workload", "kernels/softmax", "--with", "numpy<2"], "--with has no effect"),
    ],
)
def test_options_of_workloads_that_are_refused(
    capsys: Capture, options: list[str], text: str
) -> None:
    ended = bisect(capsys, "--settings", "A=1", "A=2", *options)
    assert ended.code == 2, ended.err
    assert text in ended.err


def test_further_packages_of_releases(capsys: Capture, wheels: Path) -> None:
    make_wheel(wheels, "7.0", "PLUS = 7\n", package="otherpackage")
    command = "{python} -c 'import otherpackage, tinypackage; assert otherpackage.PLUS == 7'"
    options = ["--releases", "tinypackage:1.0..1.5", "--metric", "printed", "--command", command]
    assert bisect(capsys, *options).code == 5
    document = bisect(capsys, *options, "--with", "otherpackage>=7", "--json").document
    assert [one["commit"] for one in document["candidates"]][-1] == "1.3"


def test_equal_settings(capsys: Capture) -> None:
    assert bisect(capsys, "--settings", "A=1", "A=1", "--command", "true").code == 3
