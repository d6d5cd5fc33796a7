"""Start of processes: threads, caches, equal stack sizes, one memory layout for all variants."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from torchyard.bench.launch import draw_launch, launch_specs, threads_of
from torchyard.bench.rounds import choose_reseat
from torchyard.core.study import Environment, MeasureSettings, RelocationMethod, Target, Variant
from torchyard.machine.system.cores import cores_of
from torchyard.process.start import LaunchSpec, prepare

HERE = Target(name="here", python=sys.executable)
SETTINGS = MeasureSettings(threads=2)


def specs_of(
    folder: Path, *variants: Variant, settings: MeasureSettings = SETTINGS
) -> list[LaunchSpec]:
    groups: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        groups.setdefault(variant.process_key, []).append(variant)
    draw = draw_launch(random.Random(1))
    specs = launch_specs(groups, settings, draw, folder / "cache", folder)
    return [spec for instances in specs.values() for spec in instances]


def stack_bytes(spec: LaunchSpec) -> int:
    """What the kernel puts on a new process's stack: path, arguments and environment."""
    ready = prepare(spec, launch_mark="m" * 32)
    texts = [ready.python, *ready.command(3, 4)]
    texts += [f"{name}={value}" for name, value in ready.environment.items()]
    return sum(len(text.encode()) + 1 for text in texts)


@pytest.fixture
def linked(tmp_path: Path) -> str:
    longer = tmp_path / "a-much-longer-folder-name"
    longer.mkdir()
    (longer / "python").symlink_to(sys.executable)
    return str(longer / "python")


@pytest.fixture
def library(tmp_path: Path) -> str:
    (tmp_path / "libsome.so").write_bytes(b"")
    return str(tmp_path / "libsome.so")


def variants_of(linked: str, library: str) -> tuple[Variant, ...]:
    other = Target(name="other", python=linked, variables=(("PYTHONPATH", "/somewhere"),))
    loads = Environment(name="loads", preload=(library,), variables=(("MALLOC_ARENA_MAX", "2"),))
    both = Environment(name="both", preload=(library,), variables=(("LD_PRELOAD", library),))
    return (
        Variant(name="a", target=HERE),
        Variant(name="b", target=other),
        Variant(name="c", target=HERE, environment=loads),
        Variant(name="d", target=HERE, environment=both),
        Variant(name="e", target=Target(name="named", python="python3")),
    )


def test_paired_processes_start_with_equally_large_stacks(
    tmp_path: Path, linked: str, library: str
) -> None:
    specs = specs_of(tmp_path, *variants_of(linked, library))
    assert len({stack_bytes(spec) for spec in specs}) == 1


def test_paired_processes_get_one_layout(tmp_path: Path, linked: str, library: str) -> None:
    specs = specs_of(tmp_path, *variants_of(linked, library))
    assert len({spec.arguments for spec in specs}) == 1
    assert specs[0].arguments[0].startswith("--layout=")
    assert not any(spec.randomize_addresses for spec in specs)
    assert len({dict(spec.variables)["PYTHONHASHSEED"] for spec in specs}) == 1


def test_single_and_unpaired_processes_get_a_random_layout(
    tmp_path: Path, linked: str, library: str
) -> None:
    variants = variants_of(linked, library)
    unpaired = MeasureSettings(threads=2, paired_layout=False)
    specs = [*specs_of(tmp_path, variants[0]), *specs_of(tmp_path, *variants, settings=unpaired)]
    assert all(spec.randomize_addresses and spec.arguments == () for spec in specs)
    assert not any("TORCHYARD_PAD" in dict(spec.variables) for spec in specs)


def test_every_launch_draws_a_new_layout() -> None:
    chance = random.Random(3)
    draws = {draw_launch(chance) for _ in range(50)}
    assert len(draws) == 50
    assert len({draw.pages for draw in draws}) > 40
    assert all(draw.heap_bytes > 0 and draw.pad % 16 == 0 for draw in draws)


def test_threads_are_fixed_before_torch_is_imported(tmp_path: Path) -> None:
    three = Environment(name="three", threads=3)
    specs = specs_of(
        tmp_path, Variant(name="a", target=HERE), Variant(name="b", target=HERE, environment=three)
    )
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    values = [[dict(spec.variables)[name] for name in names] for spec in specs]
    assert values == [["2"] * 3, ["3"] * 3]


def test_threads_are_the_environments_then_the_studys_then_every_core() -> None:
    plain = Variant(name="a", target=HERE)
    own = Variant(name="b", target=HERE, environment=Environment(name="e", threads=5))
    assert threads_of(own, SETTINGS) == 5
    assert threads_of(plain, SETTINGS) == 2
    assert threads_of(plain, MeasureSettings()) == len(os.sched_getaffinity(0))


def test_the_users_variables_win(tmp_path: Path) -> None:
    target = Target(name="here", python=sys.executable, variables=(("A", "1"), ("B", "1")))
    environment = Environment(name="e", variables=(("B", "2"), ("MKL_NUM_THREADS", "7")))
    (spec,) = specs_of(tmp_path, Variant(name="a", target=target, environment=environment))
    variables = dict(spec.variables)
    assert (variables["A"], variables["B"], variables["MKL_NUM_THREADS"]) == ("1", "2", "7")


def test_caches_and_names_are_distinct_even_for_names_with_dashes(tmp_path: Path) -> None:
    one = Target(name="a-b", python=sys.executable)
    two = Target(name="a", python=sys.executable)
    specs = specs_of(
        tmp_path,
        Variant(name="x", target=one, environment=Environment(name="c")),
        Variant(name="y", target=two, environment=Environment(name="b-c")),
    )
    for key in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({dict(spec.variables)[key] for spec in specs}) == 2
    assert len({spec.name for spec in specs}) == 2


@pytest.mark.parametrize(
    ("method", "device", "name", "expected"),
    [
        ("auto", "cpu", "PLAIN", "pages"),
        ("auto", "cpu", "MALLOC_ARENA_MAX", "heap"),
        ("auto", "cpu", "GLIBC_TUNABLES", "heap"),
        ("auto", "cuda", "PLAIN", "pages"),
        ("auto", "cuda:1", "PLAIN", "pages"),
        ("auto", "xpu", "PLAIN", "off"),
        ("heap", "cpu", "PLAIN", "heap"),
        ("pages", "cpu", "MALLOC_ARENA_MAX", "pages"),
        ("off", "cpu", "PLAIN", "off"),
    ],
)
def test_relocation_of_data(
    method: RelocationMethod, device: str, name: str, expected: str
) -> None:
    environment = Environment(name="e", variables=((name, "1"),))
    variants = [
        Variant(name="a", target=HERE),
        Variant(name="b", target=HERE, environment=environment),
    ]
    assert choose_reseat(method, variants, device) == expected


def test_preloading_an_allocator_changes_the_memory_settings() -> None:
    loads = Environment(name="loads", preload=("/lib/x.so",))
    assert choose_reseat("auto", [Variant(name="a", target=HERE, environment=loads)], "cpu") == (
        "heap"
    )


def test_instances_share_the_cores_out(tmp_path: Path) -> None:
    pair = Environment(name="pair", instances=2, cores="0-4", memory="bind:0")
    variant = Variant(name="p", target=HERE, environment=pair)
    first, second = specs_of(tmp_path, variant, settings=MeasureSettings(threads=7))
    assert (first.name, second.name) == ("here+pair-1", "here+pair-2")
    assert dict(first.variables)["TORCHYARD_CORES"] == "0-2"
    assert dict(second.variables)["TORCHYARD_CORES"] == "3-4"
    assert dict(first.variables)["TORCHYARD_MEMORY"] == "bind:0"
    assert dict(first.variables)["OMP_NUM_THREADS"] == "3"
    assert cores_of(pair) == ((0, 1, 2), (3, 4))
    alone = Environment(name="alone", threads=1, instances=2)
    assert threads_of(Variant(name="a", target=HERE, environment=alone), SETTINGS) == 1


def test_one_process_may_be_given_cores(tmp_path: Path) -> None:
    placed = Variant(name="p", target=HERE, environment=Environment(name="first", cores="0"))
    (spec,) = specs_of(tmp_path, placed, settings=MeasureSettings())
    assert dict(spec.variables)["TORCHYARD_CORES"] == "0"
    assert dict(spec.variables)["OMP_NUM_THREADS"] == "1"
    (plain,) = specs_of(tmp_path, Variant(name="q", target=HERE))
    assert "TORCHYARD_CORES" not in dict(plain.variables)


def test_spinning_idle_threads_are_stopped_when_processes_run_in_parallel(tmp_path: Path) -> None:
    active = Environment(name="active", variables=(("OMP_WAIT_POLICY", "ACTIVE"),))
    spins = Variant(name="s", target=HERE, environment=active)
    (alone,) = specs_of(tmp_path, spins)
    assert not alone.stopped_between
    both = specs_of(tmp_path, Variant(name="plain", target=HERE), spins)
    assert [spec.stopped_between for spec in both] == [False, True]
    assert Environment(name="b", variables=(("KMP_BLOCKTIME", "200"),)).spins
    assert not Environment(name="b", variables=(("KMP_BLOCKTIME", "0"),)).spins
    assert not Environment(name="b", variables=(("OMP_WAIT_POLICY", "passive"),)).spins
