"""`torchyard build` and `doctor` without a build: errors, lists, recipes, help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CompletedCommand, call
from torchyard.builds.commands import BUILD_COMMANDS
from torchyard.builds.commands.progress_display import show_build_progress, time_text
from torchyard.builds.plan import BuildEvent
from torchyard.builds.recipe_file import shipped_recipes

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def refused(capsys: Capture, home: Path, *words: str) -> CompletedCommand:
    """A command line that ends with 2, in few lines, before anything is done."""
    ended = call(capsys, "build", *words)
    assert ended.code == 2, ended.err
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert "  hint: " in ended.err
    assert len(ended.err.splitlines()) <= 4
    assert not home.exists()
    return ended


def recipe(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.toml"
    path.write_text(text + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("pytorhc",), "there is no recipe 'pytorhc'", "did you mean 'pytorch'?"),
        (("pytorch", "--variant", "cpu-amr"), "no variant 'cpu-amr'", "did you mean 'cpu-arm'?"),
        (("pytorch", "--set", "sorce.git.ref=x"), "no table 'sorce'", "did you mean 'source'?"),
        (("pytorch", "--set", "source.gti.ref=x"), "'gti'", "did you mean 'git'?"),
        (("pytorch", "--set", "source.git.reff=x"), "'reff'", "did you mean 'ref'?"),
        (("pytorch", "--set", "source.git=x"), "source.git", "table"),
        (("pytorch", "--set", "USE_CUDA"), "'USE_CUDA' is not KEY=VALUE", "USE_CUDA=0"),
        (("pytorch", "--set", "openblsa/version=1"), "no component 'openblsa'", "component"),
        (("pytorch", "--jobs", "many"), "--jobs: 'many'", "--jobs 4"),
        (("pytorch", "--jobs", "0"), "--jobs: '0'", "--jobs 4"),
        (("pytorch", "--name", "../x"), "'../x' is not a valid build name", "letters"),
        (("pytorch", "--locked", "nowhere.toml"), "there is no lock", "build lock"),
        (("./nowhere.toml",), "there is no recipe file", "check the path"),
        (("pytorch", "--form", "x"), "there is no option '--form'", "did you mean '--format'?"),
        (("pytorch", "--format", "pdf"), "'pdf' is not one of", "build run --help"),
        (("pytorch", "--only", "compile", "--plan"), "there is no step 'compile'", "step"),
        (("generic",), "source", "source"),
        (
            ("generic", "--set", "source.folder.path=nowhere"),
            "nowhere', which is no",
            "path of a source tree",
        ),
        (("--variant", "cpu-arm"), "Missing argument 'RECIPE'", "build run --help"),
        (("update", "nothing"), "there is no build 'nothing'", "build"),
        (("rebuild", "nothing"), "there is no build 'nothing'", "build"),
        (("clean", "nothing"), "there is no build 'nothing'", "build"),
        (("test", "nothing"), "there is no build 'nothing'", "build"),
        (("show", "nothing"), "there is no build 'nothing'", "build"),
        (("lock", "nothing"), "there is no build 'nothing'", "build"),
        (("sbom", "nothing"), "there is no build 'nothing'", "build"),
        (("wheels", "nothing"), "there is no build 'nothing'", "build"),
        (
            ("openblas", "--build-cache", "s3://bucket/x", "--plan"),
            "'s3' is not a supported kind of URL",
            "give a folder",
        ),
        (("explain", "nowhere.log"), "there is no log nowhere.log", "path of a log"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_a_hint(
    capsys: Capture, home: Path, words: tuple[str, ...], what: str, fix: str
) -> None:
    ended = refused(capsys, home, *words)
    lines = ended.err.splitlines()
    assert what in lines[0]
    assert any(fix in line for line in lines if line.startswith("  hint: "))


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("buidler = 'cmake'", "unknown key 'buidler'", "did you mean 'builder'?"),
        ("[variants.fast]\noption = {}", "variants.fast: unknown key", "did you mean 'options'?"),
        ("[source.git]\nurl = 'x'\nreff = 'y'", "'reff'", "did you mean 'ref'?"),
        ("[cmake]\ntarget = ['a']", "'target'", "did you mean 'targets'?"),
        ("builder = 'cmaek'", "'cmaek'", "cmake"),
        ("builder =", "is not valid TOML", "correct that line"),
        ("[[components]]\nrecipe = 'nosuch'", "there is no recipe 'nosuch'", "./mine.toml"),
        ("needs = ['nosuch']\n[source.folder]\npath = '/'", "'nosuch'", "recipe"),
        ("[source.folder]\npath = 'SRC'\n[options]\nA = '{nothing}'", "{nothing}", "placeholder"),
        ("patches = ['gone.patch']\n[source.folder]\npath = 'SRC'", "gone.patch", "patches"),
        (
            "[[when]]\nif = { relase = '>1' }\n[source.folder]\npath = 'SRC'",
            "unknown key 'relase'",
            "did you mean 'release'?",
        ),
        ("default-variant = 'none'", "no variant 'none'", "variant"),
    ],
)
def test_a_wrong_recipe_exits_with_2_and_a_hint(
    capsys: Capture, home: Path, tmp_path: Path, text: str, what: str, fix: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    ended = refused(capsys, home, recipe(tmp_path, text.replace("SRC", str(source))))
    assert what in ended.err
    assert fix in ended.err.partition("hint: ")[2]


def test_circular_needs_are_an_error(capsys: Capture, home: Path, tmp_path: Path) -> None:
    for name, needs in (("hen", "egg"), ("egg", "hen")):
        recipe(tmp_path, f"needs = ['{needs}']\n[source.folder]\npath = '/'", name)
    stack = "[[components]]\nrecipe = './hen.toml'\n[[components]]\nrecipe = './egg.toml'"
    ended = refused(capsys, home, recipe(tmp_path, stack))
    assert "circular dependency: hen -> egg -> hen" in ended.err
    assert "correct `needs`" in ended.err


def test_a_duplicate_component_is_an_error(capsys: Capture, home: Path, tmp_path: Path) -> None:
    recipe(tmp_path, "[source.folder]\npath = '/'", "part")
    stack = "[[components]]\nrecipe = './part.toml'\n[[components]]\nrecipe = './part.toml'"
    assert "duplicate component 'part'" in refused(capsys, home, recipe(tmp_path, stack)).err


def test_the_plan_of_every_shipped_recipe_can_be_shown(capsys: Capture, home: Path) -> None:
    for name in shipped_recipes():
        if name == "generic":
            continue
        ended = call(capsys, "build", name, "--plan")
        if ended.code:  # a base, a GPU or conda may be missing: then it is said in words
            assert ended.err.startswith("error: ")
            assert "internal error" not in ended.err
        else:
            assert ended.out.startswith(f"plan {name}")
    assert not home.exists(), "a plan changes nothing"


def test_options_may_stand_before_the_recipe(capsys: Capture, tmp_path: Path) -> None:
    words = ("--plan", "--name", "x", "generic", "--set", f"source.folder.path={tmp_path}/..")
    assert "which contains the destination of the copy" in call(capsys, "build", *words).err
    source = tmp_path / "source"
    source.mkdir()
    words = ("--plan", "--name", "x", "generic", "--set", f"source.folder.path={source}")
    assert call(capsys, "build", *words).out.startswith("plan x\n")


def test_recipes_are_listed_and_shown(capsys: Capture, tmp_path: Path) -> None:
    out = call(capsys, "build", "recipes").out
    for name in shipped_recipes():
        assert f"{name} " in out
    rows = json.loads(call(capsys, "build", "recipes", "--json").out)["recipes"]
    assert [row["name"] for row in rows] == list(shipped_recipes())
    shown = call(capsys, "build", "recipes", "pytorch", "--variant", "cpu-arm").out
    assert "variant trimmed" in shown
    assert "sources git" in shown
    document = json.loads(call(capsys, "build", "recipes", "pytorch", "--json").out)
    assert document["recipe"]["name"] == "pytorch"
    mine = recipe(tmp_path, "summary = 'of my own'\n[source.folder]\npath = '/'")
    assert "of my own" in call(capsys, "build", "recipes", mine).out


def test_an_empty_results_directory(capsys: Capture) -> None:
    assert call(capsys, "build", "list").out == "no builds yet\n"
    assert json.loads(call(capsys, "build", "list", "--json").out) == {"schema": 1, "builds": []}


def test_a_damaged_record_is_reported_and_does_not_hide_the_others(
    capsys: Capture, home: Path
) -> None:
    for name in ("broken", "unfinished"):
        (home / "builds" / name).mkdir(parents=True)
    (home / "builds" / "broken" / "record.json").write_text("{half")
    ended = call(capsys, "build", "list")
    assert ended.code == 0
    assert "damaged" in ended.out
    assert "not finished" in ended.out
    assert "record.json" in ended.err
    assert call(capsys, "build", "show", "broken").code == 8
    assert call(capsys, "build", "show", "unfinished").code == 2


def test_a_damaged_request_is_reported(capsys: Capture, home: Path) -> None:
    (home / "builds" / "x").mkdir(parents=True)
    request = home / "builds" / "x" / "request.json"
    for text in ("{half", "[]", '{"name": 3}'):
        request.write_text(text)
        ended = call(capsys, "build", "rebuild", "x")
        assert ended.code == 8
        assert str(request) in ended.err


def test_explain_reads_a_log_and_stdin(capsys: Capture, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("[1/2] cc -c two.c\ntwo.c:1:29: error: 'undeclared_number' undeclared\n")
    assert "undeclared_number" in call(capsys, "build", "explain", str(log)).out
    document = json.loads(call(capsys, "build", "explain", str(log), "--json").out)
    assert "undeclared_number" in json.dumps(document["diagnosis"])


def test_doctor_of_a_recipe(capsys: Capture, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    words = ("doctor", "generic", "--set", f"source.folder.path={source}", "--json")
    ended = call(capsys, *words)
    document = json.loads(ended.out)
    assert ended.code == (0 if document["can_build"] else 4)
    assert call(capsys, "doctor", "pytorhc").code == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (60.0, "1 min 00 s")),
        *((3599.2, "59 min 59 s"), (3600.0, "1 h 00 min"), (7505.0, "2 h 05 min")),
    ],
)
def test_duration_text(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_progress_in_plain_lines(capsys: Capture) -> None:
    with show_build_progress(quiet=False) as listener:
        listener(BuildEvent(kind="skip", step="a/fetch"))
        listener(BuildEvent(kind="start", step="a/build", text="compile \x1b[31m"))
        for done in (1, 2, 3):
            listener(BuildEvent(kind="progress", step="a/build", done=done, total=9, elapsed_s=1))
        listener(BuildEvent(kind="note", text="by the way"))
        listener(BuildEvent(kind="failed", step="a/build", elapsed_s=12))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "a/build: compile \N{REPLACEMENT CHARACTER}[31m",
        "a/build: 1/9, 1.0 s",
        "by the way",
        "a/build: failed after 12 s",
    ]
    with show_build_progress(quiet=True) as listener:
        listener(BuildEvent(kind="start", step="a/build"))
    assert capsys.readouterr().err == ""


def test_every_command_has_an_example_that_parses(capsys: Capture) -> None:
    """Options in the examples of help pages exist."""
    import click

    from torchyard.builds.commands import build

    context = click.Context(build)
    for name in BUILD_COMMANDS:
        command = build.get_command(context, name)
        assert command is not None
        options = {word for parameter in command.params for word in parameter.opts}
        run = build.get_command(context, "run")
        assert run is not None
        options |= {word for parameter in run.params for word in parameter.opts}
        for word in (command.help or "").split():
            if word.startswith("--") and word.strip("-"):
                assert word.partition("=")[0].rstrip(".,`") in options, (name, word)
