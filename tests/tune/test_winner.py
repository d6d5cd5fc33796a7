"""The winner as files and shell lines, read back by the programs that use them."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from torchyard.bench.study_file import read_study_file
from torchyard.core.study import Target, Variant
from torchyard.tune.model import Choice, Contender
from torchyard.tune.report import (
    code_lines,
    environment_file,
    is_set_outside,
    shell_line,
    study_text,
    variables_of,
)

DEFAULT = Variant(name="default", target=Target(name="here", python="python"))
HOSTILE = "a b'c\"d$HOME`id`;\\"
WINNER = (
    Contender()
    .with_choice(
        Choice(
            dimension="allocator",
            name="tc",
            about="an allocator\nof two lines",
            preload=("/opt/my libs/libtc.so",),
            variables=(("HOSTILE", HOSTILE),),
        )
    )
    .with_choice(Choice(dimension="threads", name="one", threads=1))
    .with_choice(
        Choice(
            dimension="gradients",
            name="inf",
            options=(("inference-mode", True),),
            code="with torch.inference_mode():",
        )
    )
    .with_choice(
        Choice(dimension="between", name="inter", variables=(("TORCHYARD_INTEROP_THREADS", "1"),))
    )
)


def test_a_shell_reads_the_environment_file_back(tmp_path: Path) -> None:
    path = tmp_path / "winner.env"
    path.write_text(environment_file(WINNER, DEFAULT))
    script = f"set -a; . '{path}'; set +a; printf '%s|%s|%s' \"$HOSTILE\" \"$OMP_NUM_THREADS\" x"
    completed = subprocess.run(
        ["sh", "-c", script.replace("LD_PRELOAD", "IGNORED")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout == f"{HOSTILE}|1|x"
    assert "with torch.inference_mode()" in path.read_text()


def test_the_shell_line_starts_a_program_with_the_variables() -> None:
    line = shell_line(WINNER, DEFAULT, ["printenv", "HOSTILE"])
    assert "LD_PRELOAD='/opt/my libs/libtc.so'" in line
    without = Contender(choices=tuple(one for one in WINNER.choices if one.name != "tc"))
    assert shell_line(without, DEFAULT, ["python", "my file.py"]) == (
        "OMP_NUM_THREADS=1 python 'my file.py'"
    )
    only_variables = Contender(
        choices=(Choice(dimension="a", name="a", variables=(("HOSTILE", HOSTILE),)),)
    )
    completed = subprocess.run(
        ["sh", "-c", shell_line(only_variables, DEFAULT, ["printenv", "HOSTILE"])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout == HOSTILE + "\n"


def test_variables_of_our_own_worker_are_not_given_to_others() -> None:
    assert "TORCHYARD_INTEROP_THREADS" not in variables_of(WINNER, DEFAULT)
    assert code_lines(WINNER) == ["with torch.inference_mode():"]


def test_the_study_is_one_that_torchyard_reads(tmp_path: Path) -> None:
    text = study_text(WINNER, DEFAULT)
    table = tomllib.loads(text)
    assert table["environments"]["tuned"]["variables"]["HOSTILE"] == HOSTILE
    path = tmp_path / "winner.toml"
    path.write_text(text + '\n[[workloads]]\nname = "models/gpt"\n')
    request = read_study_file(path)
    assert request.candidates[0].text == "eager+tuned+inference-mode"
    assert request.environments["tuned"].preload == ("/opt/my libs/libtc.so",)
    assert request.environments["tuned"].threads == 1


def test_instances_are_started_side_by_side_on_their_cores(tmp_path: Path) -> None:
    pair = Contender().with_choice(
        Choice(dimension="instances", name="pair", instances=2, cores="0-3")
    )
    line = shell_line(pair, DEFAULT, ["python", "serve.py"])
    assert line == (
        "OMP_NUM_THREADS=2 taskset -c 0-1 python serve.py & "
        "OMP_NUM_THREADS=2 taskset -c 2-3 python serve.py & wait"
    )
    text = environment_file(pair, DEFAULT)
    assert "# start it with: taskset -c 0-1 PROGRAM" in text
    assert "OMP_NUM_THREADS=2" in text
    path = tmp_path / "study.toml"
    path.write_text(study_text(pair, DEFAULT))
    assert tomllib.loads(path.read_text())["environments"]["tuned"] == {
        "cores": "0-3",
        "instances": 2,
    }
    assert read_study_file(path).environments["tuned"].instances == 2


def test_memory_is_bound_by_numactl() -> None:
    node = Contender().with_choice(
        Choice(dimension="threads", name="node", threads=4, cores="0-3", memory="bind:0")
    )
    line = shell_line(node, DEFAULT, ["python", "train.py"])
    assert line == "OMP_NUM_THREADS=4 numactl --physcpubind=0-3 --membind=0 python train.py"
    all_nodes = Contender().with_choice(Choice(dimension="m", name="i", memory="interleave:0-1"))
    assert shell_line(all_nodes, DEFAULT, ["x"]) == "numactl --interleave=0-1 x"


def test_what_is_set_when_a_program_is_started() -> None:
    def alone(choice: Choice) -> bool:
        return is_set_outside(Contender().with_choice(choice), DEFAULT)

    assert is_set_outside(WINNER, DEFAULT)
    assert alone(Choice(dimension="m", name="i", memory="interleave:0-1"))
    assert alone(Choice(dimension="c", name="c", cores="0"))
    assert not alone(Choice(dimension="compiler", name="inductor", backend="inductor"))
