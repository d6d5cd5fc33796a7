"""The request of a sweep: options, the table `[sweep]`, and errors with a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.bench.request import Request, SpecText, WorkloadChoice
from torchyard.bench.study_file import read_study_file
from torchyard.core.study import Workload
from torchyard.errors import UsageError
from torchyard.sweep.sweep_file import (
    Patterns,
    SweepRequest,
    check_executor,
    check_executor_options,
    merge_sweeps,
    parse_shard,
    read_modes,
    read_precisions,
    read_sweep_file,
)

GPT = Workload(suite="models", name="gpt")
RESNET = Workload(suite="timm", name="resnet50")
MINE = Workload(suite="file", name="/somewhere/mine.py:thing")

WHOLE = """
name = "nightly"
candidates = ["inductor"]
precision = "bfloat16"

[[workloads]]
name = "models/gpt"

[[workloads]]
name = "kernels/matmul"
mode = "inference"

[sweep]
suites = ["kernels"]
modes = ["training", "inference"]
precisions = ["float32", "amp"]
backends = ["inductor", "aot_eager"]
only = ["models/*", "matmul"]
exclude = ["*/lstm"]
cell-limit = "30m"
tries = 3
null = true
executor = "slurm"
partition = "gpu"
gpus = "h200:1"
cpus = 8
job-memory = "64G"
exclusive = true
job-time = "2h"
at-most = 8
slurm = { constraint = "h200", nice = 100 }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "found"), [("1/4", (1, 4)), ("4/4", (4, 4)), ("1/1", (1, 1)), (" 2 / 3 ", (2, 3))]
)
def test_a_shard_is_a_part_of_a_number_of_parts(text: str, found: tuple[int, int]) -> None:
    assert parse_shard(text) == found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("5/4", "there is no shard 5 of 4"),
        ("0/4", "there is no shard 0 of 4"),
        ("1/0", "has no shards"),
        ("2", "is not a shard"),
        ("", "is not a shard"),
        ("-1/4", "is not a shard"),
        ("1/4/2", "is not a shard"),
        ("a/b", "is not a shard"),
        ("1.5/4", "is not a shard"),
    ],
)
def test_invalid_shards(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shard(text)
    assert what in caught.value.what
    assert caught.value.what.startswith("--shard: ")
    assert "1/4" in caught.value.hint


def test_names_are_each_kept_once_in_their_order() -> None:
    assert read_precisions(["amp", "float32", "amp"], where="x") == ("amp", "float32")
    assert read_modes(["training", "inference", "training"], where="x") == (
        "training",
        "inference",
    )
    assert check_executor("slurm", where="x") == "slurm"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("float23", "'float32'"),
        ("bf16", "'bfloat16'"),
        ("FP16", "'float16'"),
        ("autocast", "'amp'"),
        ("int8", "valid precisions: amp, bfloat16, float16, float32"),
    ],
)
def test_an_unknown_precision_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"--precisions: unknown precision '{name}'") as caught:
        read_precisions(["float32", name], where="--precisions")
    assert hint in caught.value.hint


def test_an_unknown_mode_or_executor_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown mode 'train'") as caught:
        read_modes(["train"], where="--modes")
    assert "'training'" in caught.value.hint
    with pytest.raises(UsageError, match="unknown executor 'slrum'") as caught:
        check_executor("slrum", where="--executor")
    assert "'slurm'" in caught.value.hint


@pytest.mark.parametrize(
    ("only", "exclude", "kept"),
    [
        ((), (), [GPT, RESNET, MINE]),
        (("timm/*",), (), [RESNET]),
        (("resnet*",), (), [RESNET]),
        (("models/*", "timm/*"), (), [GPT, RESNET]),
        ((), ("*/gpt",), [RESNET, MINE]),
        (("*",), ("file/*",), [GPT, RESNET]),
        (("*mine.py*",), (), [MINE]),
        (("GPT",), (), []),
        (("models/gp[st]",), (), [GPT]),
    ],
)
def test_patterns_are_over_suite_and_name(
    only: tuple[str, ...], exclude: tuple[str, ...], kept: list[Workload]
) -> None:
    patterns = Patterns(only=only, exclude=exclude)
    assert [one for one in (GPT, RESNET, MINE) if patterns.keep(one)] == kept


def test_patterns_that_fit_nothing_are_known() -> None:
    patterns = Patterns(only=("timm/*", "tmm/*"), exclude=("*/gpt", "*/bert"))
    assert patterns.unmatched([GPT, RESNET]) == ["tmm/*", "*/bert"]


def test_the_table_of_a_study_file(tmp_path: Path) -> None:
    request = read_sweep_file(write(tmp_path, WHOLE))
    study = request.study
    assert study.name == "nightly"
    assert [spec.text for spec in study.candidates] == ["inductor", "aot_eager"]
    assert [(one.suite, one.name, one.modes) for one in study.workloads] == [
        ("models", "gpt", ()),
        ("kernels", "matmul", ("inference",)),
        ("kernels", "", ()),
    ]
    assert request.modes == ("training", "inference")
    assert request.precisions == ("float32", "amp")
    assert request.patterns == Patterns(only=("models/*", "matmul"), exclude=("*/lstm",))
    assert (request.cell_s, request.tries, request.null) == (1800.0, 3, True)
    assert request.shard is None
    assert request.executor == "slurm"
    assert request.executor_options == {
        "partition": "gpu",
        "gpus": "h200:1",
        "cpus": 8,
        "memory": "64G",
        "exclusive": True,
        "time": "2h",
        "at-most": 8,
        "slurm-constraint": "h200",
        "slurm-nice": 100,
    }


def test_bench_reads_the_same_file_and_leaves_the_table_alone(tmp_path: Path) -> None:
    request = read_study_file(write(tmp_path, WHOLE))
    assert [spec.text for spec in request.candidates] == ["inductor"]
    assert [(one.name, one.modes) for one in request.workloads] == [
        ("gpt", ()),
        ("matmul", ("inference",)),
    ]


def test_a_study_without_the_table_is_a_sweep_of_its_workloads(tmp_path: Path) -> None:
    path = write(tmp_path, '[[workloads]]\nname = "models/gpt"\n')
    request = read_sweep_file(path)
    assert [one.name for one in request.study.workloads] == ["gpt"]
    assert request == SweepRequest(study=read_study_file(path))


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ('suites = ["kernel"]', "sweep.suites: unknown suite 'kernel'", "'kernels'"),
        ('modes = ["train"]', "sweep.modes[0]: 'train' is not a valid value", "'training'"),
        ('precisions = ["fp32"]', "sweep.precisions[0]: 'fp32' is not", "float32"),
        ('executor = "slrum"', "sweep.executor: 'slrum' is not", "'slurm'"),
        ('cell-limit = "soon"', "sweep.cell-limit: 'soon' is not a duration", "60s"),
        ("cell-limit = 0", "sweep.cell-limit: 0 is out of range", "above zero"),
        ("tries = 0", "sweep.tries: 0 is out of range", "at least 1"),
        ("tris = 1", "sweep: unknown key 'tris'", "'tries'"),
        ('shard = "1/4"', "sweep: unknown key 'shard'", "key"),
    ],
)
def test_mistakes_name_file_key_and_fix(tmp_path: Path, line: str, what: str, hint: str) -> None:
    path = write(tmp_path, f"[sweep]\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_sweep_file(path)
    assert caught.value.what.startswith(f"{path}: {what}")
    assert hint in caught.value.hint


def test_options_win_over_the_file() -> None:
    here = Path()
    below = SweepRequest(
        study=Request(
            name="nightly",
            candidates=(SpecText(text="inductor", where="file", folder=here),),
            workloads=(WorkloadChoice(where="file", suite="models"),),
        ),
        precisions=("float32", "amp"),
        patterns=Patterns(only=("a",), exclude=("b",)),
        cell_s=60.0,
        tries=3,
        null=True,
        executor="slurm",
        executor_options={"partition": "gpu", "gpus": 1},
    )
    assert merge_sweeps(below, SweepRequest()) == below
    above = SweepRequest(
        study=Request(workloads=(WorkloadChoice(where="--suites", suite="kernels"),)),
        precisions=("bfloat16",),
        patterns=Patterns(only=("c",)),
        shard=(1, 2),
        cell_s=5.0,
        tries=1,
        null=False,
        executor="local",
        executor_options={"gpus": "2"},
    )
    merged = merge_sweeps(below, above)
    assert merged.study.name == "nightly"
    assert [one.suite for one in merged.study.workloads] == ["kernels"]
    assert [one.text for one in merged.study.candidates] == ["inductor"]
    assert merged.precisions == ("bfloat16",)
    assert merged.patterns == Patterns(only=("c",), exclude=("b",))
    assert (merged.shard, merged.cell_s, merged.tries) == ((1, 2), 5.0, 1)
    assert merged.null is False
    assert merged.executor == "local"
    assert merged.executor_options == {"partition": "gpu", "gpus": "2"}


def test_options_of_a_cluster_need_one() -> None:
    said = SweepRequest(executor_options={"time": "2h", "slurm-nice": "1", "gpus": "1"})
    with pytest.raises(UsageError) as caught:
        check_executor_options(said, said)
    assert caught.value.what == "--job-time, --slurm, --gpus: no effect"
    assert "--executor slurm" in caught.value.hint
    # The same in a study file, tried here: nobody meant to say more.
    check_executor_options(said, SweepRequest())
    cluster = SweepRequest(executor="slurm", executor_options=said.executor_options)
    check_executor_options(cluster, said)


def test_the_largest_batch_of_what_names_no_size(tmp_path: Path) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text(
        '[[workloads]]\nname = "models/gpt"\nbatch-size = 4\n'
        '[sweep]\nsuites = ["kernels"]\nbatch-size = "largest"\n'
    )
    below = read_sweep_file(path)
    assert below.largest_batches
    assert [one.batch_size for one in below.study.workloads] == [4, None]
    assert merge_sweeps(below, SweepRequest()).largest_batches
    # The option is for all of them, and a number in its place is no search.
    above = merge_sweeps(below, SweepRequest(largest_batches=True))
    assert above.largest_batches
    assert [one.batch_size for one in above.study.workloads] == [None, None]
    assert not merge_sweeps(below, SweepRequest(study=Request(batch_size=8))).largest_batches


def test_another_word_than_largest_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text('[sweep]\nsuites = ["kernels"]\nbatch-size = "smallest"\n')
    with pytest.raises(UsageError, match=r"sweep\.batch-size") as raised:
        read_sweep_file(path)
    assert "largest" in f"{raised.value.why} {raised.value.hint}"
