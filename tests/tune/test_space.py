"""Spaces: selection by machine, unavailable choices, and errors in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchyard.core.study import Environment, Target, Variant, Workload
from torchyard.errors import NothingToDo, UsageError
from torchyard.tune.model import Choice, Contender
from torchyard.tune.space import RaceContext, context_of, read_space, usable_nodes

ARM = RaceContext(architecture="aarch64", cores=4, physical_cores=4, glibc="2.36", openmp=("gnu",))
INTEL = RaceContext(
    architecture="x86_64",
    cores=8,
    physical_cores=4,
    nodes=((0, 1, 2, 3), (4, 5, 6, 7)),
    node_ids=(0, 1),
    glibc="2.31",
    openmp=("intel",),
)
GPU = RaceContext(architecture="x86_64", cores=8, physical_cores=8, device="cuda", openmp=("gnu",))


def names(place: RaceContext, **options: bool) -> set[str]:
    space = read_space("default", place, **options)
    return {choice.name for choice in space.choices} | {one.name for one in space.missing}


def test_only_what_makes_sense_here_is_tried() -> None:
    arm, intel, gpu = names(ARM), names(INTEL), names(GPU)
    assert {"tensor-thp", "bind-close", "glibc-huge", "half-threads"} <= arm
    assert not {"blocktime-1", "one-node", "physical-threads", "cudnn-benchmark"} & arm
    assert {"blocktime-1", "affinity-compact", "physical-threads"} <= intel
    assert not {"tensor-thp", "wait-active", "glibc-huge"} & intel
    assert {"cuda-graphs", "expandable-segments", "cudnn-benchmark"} <= gpu
    assert not {"one-thread", "bind-close", "no-onednn"} & gpu


def test_what_changes_results_is_tried_only_when_asked_for() -> None:
    assert not {"fast-math-bf16", "matmul-high"} & names(ARM)
    assert {"fast-math-bf16", "matmul-high"} <= names(ARM, with_changes=True)
    space = read_space("default", GPU, with_changes=True)
    assert next(one for one in space.choices if one.name == "tf32").changes_results


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_phases_of_text_generation_have_the_choices_of_inference(mode: str) -> None:
    phase = RaceContext(**{**vars(ARM), "mode": mode})
    assert names(phase) == names(ARM)
    assert "inference-mode" in names(phase)


def test_modes_and_backends_have_choices_of_their_own() -> None:
    training = RaceContext(**{**vars(ARM), "mode": "training"})
    compiled = RaceContext(**{**vars(ARM), "backend": "inductor"})
    assert not {"inference-mode", "inductor-freezing"} & names(training)
    assert "inductor" not in names(compiled)
    assert "inductor-autotune" in names(compiled)


def test_instances_are_for_throughput_and_nodes_for_machines_that_have_them() -> None:
    many = RaceContext(**{**vars(INTEL), "goal": "throughput"})
    assert not {"2-instances", "instance-per-node"} & names(INTEL)
    assert {"2-instances", "4-instances", "instance-per-node", "instance-per-core"} <= names(many)
    assert "interleave" not in names(ARM)
    choices = {choice.name: choice for choice in read_space("default", many).choices}
    assert choices["instance-per-node"].instances == 2
    assert choices["instance-per-core"].instances == 8
    assert choices["interleave"].memory == "interleave:0-1"
    node = choices["one-node"]
    assert (node.cores, node.memory, node.threads) == ("0-3", "bind:0", 4)


def test_a_winner_has_the_placement_of_all_its_choices() -> None:
    contender = (
        Contender()
        .with_choice(Choice(dimension="instances", name="pair", instances=2))
        .with_choice(Choice(dimension="memory", name="near", memory="bind:0"))
        .with_choice(Choice(dimension="allocator", name="tc", preload=("/x/libtc.so",)))
    )
    default = Variant(name="default", target=Target(name="here", python="python"))
    environment = contender.variant(default).environment
    assert environment == Environment(
        name="tc+pair+near", preload=("/x/libtc.so",), memory="bind:0", instances=2
    )


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_library_that_is_not_there_is_named_with_its_package(tmp_path: Path) -> None:
    text = """
        [[choices]]
        dimension = "allocator"
        name = "gone"
        library = "libno-such-thing.so.9"
        package = "libnothing9"

        [[choices]]
        dimension = "threads"
        name = "one"
        threads = 1
    """
    space = read_space(write(tmp_path, text), ARM)
    (missing,) = space.missing
    assert (missing.name, missing.package) == ("gone", "libnothing9")
    assert "libno-such-thing.so.9" in missing.why
    assert [choice.name for choice in space.choices] == ["one"]
    assert space.name == "mine"


def test_a_library_beside_the_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.so").write_bytes(b"")
    text = '[[choices]]\ndimension = "a"\nname = "own"\nlibrary = "./mine.so"\n'
    (choice,) = read_space(write(tmp_path, text), ARM).choices
    assert choice.preload == (str(tmp_path / "mine.so"),)


@pytest.mark.parametrize(
    ("said", "expected"), [('"half"', 2), ('"physical"', 4), ("3", 3), ('"node"', 4)]
)
def test_thread_counts_by_name(tmp_path: Path, said: str, expected: int) -> None:
    text = f'[[choices]]\ndimension = "a"\nname = "x"\nthreads = {said}\n'
    (choice,) = read_space(write(tmp_path, text), ARM).choices
    assert choice.threads == expected


def test_cores_of_a_node(tmp_path: Path) -> None:
    text = '[[choices]]\ndimension = "a"\nname = "x"\nvariables = { A = "{node-cores}" }\n'
    (choice,) = read_space(write(tmp_path, text), INTEL).choices
    assert choice.variables == (("A", "0,1,2,3"),)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[[choices", "is not valid TOML"),
        ('[[choices]]\ndimension = "a"\nname = "x"\n', "'x' sets nothing"),
        ('[[choices]]\ndimension = "a"\nname = "a b"\nthreads = 1\n', "'a b' is not a valid name"),
        ('[[choices]]\ndimension = "a"\nname = "x"\nthreads = 0\n', "not a number of threads"),
        ('[[choices]]\ndimension = "a"\nname = "x"\nthreads = "lots"\n', "not a number of threads"),
        (
            '[[choices]]\ndimension = "a"\nname = "x"\nvariables = {"A B" = 1}\n',
            "'A B' is not a valid variable name",
        ),
        (
            '[[choices]]\ndimension = "a"\nname = "x"\nvariables = {LD_PRELOAD = "x.so"}\n',
            "LD_PRELOAD is not allowed",
        ),
        ('[[choices]]\ndimension = "a"\nname = "x"\ntreads = 1\n', "treads"),
        (
            '[[choices]]\ndimension = "a"\nname = "x"\nthreads = 1\n' * 2,
            "'x' is used twice",
        ),
    ],
)
def test_errors_name_the_file_and_the_place(tmp_path: Path, text: str, error: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=error) as caught:
        read_space(path, ARM)
    assert caught.value.what.startswith(path)
    assert caught.value.hint


def test_a_space_without_anything_that_works_here(tmp_path: Path) -> None:
    text = '[[choices]]\ndimension = "a"\nname = "x"\nlibrary = "libno-such.so"\n'
    with pytest.raises(NothingToDo, match="no setting of this space is available") as caught:
        read_space(write(tmp_path, text), ARM)
    assert "libno-such.so" in caught.value.why
    with pytest.raises(UsageError, match="there is no space"):
        read_space(str(tmp_path / "none.toml"), ARM)


def test_the_facts_of_this_machine() -> None:
    workload = Workload(suite="kernels", name="mlp", device="cuda:1", mode="training")
    variant = Variant(
        name="x", target=Target(name="t", python=sys.executable), backend="inductor:max-autotune"
    )
    place = context_of(workload, variant, {"openmp": ["libgomp.so.1", "libiomp5.so"]})
    assert (place.device, place.mode, place.backend) == ("cuda", "training", "inductor")
    assert place.openmp == ("gnu", "intel")
    assert 1 <= place.physical_cores <= place.cores


def test_configurations_become_variants() -> None:
    base = Environment(name="mine", variables=(("A", "1"), ("B", "1")), threads=4)
    default = Variant(name="default", target=Target(name="t", python="python"), environment=base)
    allocator = Choice(
        dimension="allocator", name="tc", preload=("/x.so",), variables=(("B", "2"),)
    )
    mode = Choice(dimension="gradients", name="inf", options=(("inference-mode", True),))
    compiled = Choice(dimension="compiler", name="ind", backend="inductor")
    both = Contender().with_choice(mode).with_choice(allocator)
    assert both.name == "tc+inf"
    variant = both.variant(default)
    assert variant.environment == Environment(
        name="tc", variables=(("A", "1"), ("B", "2")), preload=("/x.so",), threads=4
    )
    assert variant.options == (("inference-mode", True),)
    only_inside = Contender().with_choice(compiled).variant(default)
    assert only_inside.environment == base
    assert only_inside.backend == "inductor"
    other = Choice(dimension="allocator", name="je", preload=("/y.so",))
    assert both.with_choice(other).name == "je+inf"
    assert both.without(mode).name == "tc"
    assert Contender().name == "default"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("instances = 0", "instances: 0 is not a number of processes"),
        ('instances = "many"', "instances: 'many' is not a number of processes"),
        ('cores = "x"', "cores: 'x' is not a CPU list"),
        ('memory = "near"', "memory: 'near' is not a NUMA memory policy"),
    ],
)
def test_invalid_placements_are_named(tmp_path: Path, line: str, said: str) -> None:
    text = f'[[choices]]\ndimension = "place"\nname = "wrong"\n{line}\n'
    with pytest.raises(UsageError) as caught:
        read_space(write(tmp_path, text), ARM)
    assert said in caught.value.what


def test_numa_nodes_have_their_real_numbers(tmp_path: Path) -> None:
    """Node 0 may have no cores, no usable ones, or not exist."""
    for number, cores in ((0, ()), (2, (0, 1)), (10, (2, 3)), (11, (9,))):
        node = tmp_path / f"node{number}"
        node.mkdir()
        for core in cores:
            (node / f"cpu{core}").touch()
    nodes = usable_nodes([0, 1, 2, 3], tmp_path)
    assert nodes == {2: (0, 1), 10: (2, 3)}
    place = RaceContext(**{**vars(INTEL), "nodes": tuple(nodes.values()), "node_ids": tuple(nodes)})
    policies = {
        choice.name: choice.environment(Environment(name="x")).memory
        for choice in read_space("default", place).choices
    }
    assert policies["one-node"] == "bind:2"
    assert "interleave:2,10" in policies.values()
