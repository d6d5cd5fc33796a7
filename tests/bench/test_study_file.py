"""Study files: the effect of each key, and errors that name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.bench.request import Request
from torchyard.bench.study_file import read_study_file
from torchyard.core.study import Environment
from torchyard.errors import UsageError

WHOLE = """
name = "whole"
baseline = "old"
candidates = ["new", "new+tcmalloc"]
precision = "bfloat16"

[targets.old]
python = "old/bin/python"

[targets.new]
python = "new"
variables = { LD_LIBRARY_PATH = "/opt/new", LEVEL = 3 }

[environments.tcmalloc]
variables = { TCMALLOC_SKEW = 0.5 }
preload = ["libtcmalloc.so.4", "lib/mine.so"]
threads = 2

[[workloads]]
suite = "models"
mode = ["inference", "training"]
optimizer-step = true

[[workloads]]
name = "kernels/matmul"
mode = "training"
batch-size = 4
device = "cuda:1"
parameters = { size = 500 }

[[workloads]]
name = "mine.py:thing"

[budget]
time = "1.5m"
precision-goal = "0.5%"
margin = 0.02
alpha = 0.01
min-launches = 5
max-launches = 50

[settings]
block = "50ms"
threads = 4
seed = 7
reseat = "heap"
paired-layout = false
flush-l2 = true
check-accuracy = false
memory-limit = "8GiB"
start-limit = 30
step-limit = "20m"
block-limit = "90s"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two interpreters and a workload file, to which study files refer."""
    for name in ("old", "new"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\n")
        python.chmod(0o755)
    (tmp_path / "mine.py").touch()
    return tmp_path


def read(folder: Path, text: str) -> Request:
    path = folder / "study.toml"
    path.write_text(text)
    return read_study_file(path)


def test_every_key_arrives(folder: Path) -> None:
    request = read(folder, WHOLE)
    assert request.name == "whole"
    assert request.baseline is not None
    assert request.baseline.text == "old"
    assert [spec.text for spec in request.candidates] == ["new", "new+tcmalloc"]
    assert request.precision == "bfloat16"
    assert request.targets["old"].python == f"{folder}/old/bin/python"
    assert request.targets["new"].python == f"{folder}/new/bin/python"
    assert request.targets["new"].variables == (("LD_LIBRARY_PATH", "/opt/new"), ("LEVEL", "3"))
    assert request.environments == {
        "tcmalloc": Environment(
            name="tcmalloc",
            variables=(("TCMALLOC_SKEW", "0.5"),),
            preload=("libtcmalloc.so.4", f"{folder}/lib/mine.so"),
            threads=2,
        )
    }
    suite, matmul, mine = request.workloads
    assert (suite.suite, suite.name, suite.modes) == ("models", "", ("inference", "training"))
    assert suite.optimizer_step is True
    assert (matmul.suite, matmul.name, matmul.modes) == ("kernels", "matmul", ("training",))
    assert (matmul.batch_size, matmul.device) == (4, "cuda:1")
    assert matmul.parameters == (("size", 500),)
    assert (mine.suite, mine.name) == ("file", f"{folder}/mine.py:thing")
    assert request.budget == {
        "time_s": 90.0,
        "precision_goal": 0.005,
        "margin": 0.02,
        "alpha": 0.01,
        "min_launches": 5,
        "max_launches": 50,
    }
    assert request.settings == {
        "block_s": 0.05,
        "threads": 4,
        "seed": 7,
        "reseat": "heap",
        "paired_layout": False,
        "flush_l2": True,
        "check_accuracy": False,
        "memory_limit_bytes": 8 * 2**30,
        "start_limit_s": 30.0,
        "step_limit_s": 1200.0,
        "block_limit_s": 90.0,
    }


def test_paths_are_relative_to_the_file_wherever_one_stands(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    request = read(folder, WHOLE)
    assert request.targets["old"].python == f"{folder}/old/bin/python"
    assert request.candidates[0].folder == folder


def test_an_empty_file_sets_only_the_name(folder: Path) -> None:
    assert read(folder, "") == Request(name="study")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ('nam = "x"', "unknown key 'nam'", "did you mean 'name'?"),
        ("[buget]", "unknown key 'buget'", "did you mean 'budget'?"),
        ('[budget]\ntme = "5s"', "budget: unknown key 'tme'", "did you mean 'time'?"),
        ('[budget]\ntime = "soon"', "budget.time: 'soon' is not a duration", "60s"),
        ('[budget]\ntime = "5 parsec"', "budget.time: '5 parsec' has an unknown time unit", "ms"),
        ("[budget]\ntime = 0", "budget.time: 0 is out of range", "above zero"),
        ("[budget]\ntime = true", "budget.time: True is not a string or", "give"),
        ("[budget]\ntime = nan", "budget.time: nan is out of range", "finite"),
        ('[budget]\nmargin = "150%"', "budget.margin: '150%' is out of range", "percentage"),
        ("[budget]\nalpha = 0.5", "budget.alpha: 0.5 is out of range", "0.05"),
        ("[budget]\nmin-launches = 0", "budget.min-launches: 0 is out of range", "at least 1"),
        ("[budget]\nmin-launches = 2.5", "2.5 is not a whole number", "whole number"),
        ('[settings]\nreseat = "page"', "settings.reseat: 'page' is not a valid", "'pages'?"),
        ("[settings]\nseed = -1", "settings.seed: -1 is out of range", "at least 0"),
        ('[settings]\nmemory-limit = "8GB"', "settings.memory-limit: '8GB' has an", "GiB"),
        ('[settings]\nflush-l2 = "yes"', "settings.flush-l2: 'yes' is not true", "true or false"),
        ('candidates = "inductor"', "candidates: 'inductor' is not a list", "a list"),
        ("candidates = [1]", "candidates[0]: 1 is not a string", "a string"),
        ('precision = "bf16"', "precision: 'bf16' is not a valid value", "bfloat16"),
        ("[targets.old]", "targets.old: the key 'python' is missing", "add python"),
        ('[targets.old]\npython = "no/python"', "targets.old.python: the interpreter", "path"),
        ('[targets."a+b"]\npython = "old"', "targets.a+b: 'a+b' is not a valid name", "letters"),
        ("[environments.x]\nthreads = 0", "environments.x.threads: 0 is out", "at least 1"),
        ("[environments.x]\nprelod = []", "environments.x: unknown key 'prelod'", "'preload'?"),
        ("workloads = 5", "workloads: 5 is not a list", "a list"),
        ("[[workloads]]", "workloads[0]: names neither a suite nor a workload", "name"),
        ('[[workloads]]\nsuite = "kernal"', "workloads[0].suite: unknown suite", "'kernels'?"),
        ('[[workloads]]\nname = "matmull"', "workloads[0].name: unknown workload", "'matmul'?"),
        ('[[workloads]]\nname = "gpt"\nmode = "train"', "workloads[0].mode[0]: 'train'", "mean"),
        ('[[workloads]]\nname = "gpt"\nbatch-size = 0', "workloads[0].batch-size: 0", "least 1"),
        ('[[workloads]]\nname = "no.py"', "workloads[0].name: no such file: 'no.py'", "path"),
        ("name = ", "is not valid TOML", "correct"),
    ],
)
def test_every_mistake_names_file_key_and_fix(
    folder: Path, text: str, what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(folder, text)
    assert caught.value.what.startswith(f"{folder / 'study.toml'}: ")
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.what.count("study.toml") == 1


def test_a_missing_file_a_folder_and_bytes_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="there is no study file"):
        read_study_file(folder / "missing.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_study_file(folder)
    (folder / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_study_file(folder / "bytes.toml")


def test_a_python_that_cannot_be_executed_is_refused(folder: Path) -> None:
    (folder / "old" / "bin" / "python").chmod(0o644)
    with pytest.raises(UsageError, match="is not executable"):
        read(folder, '[targets.old]\npython = "old/bin/python"')
