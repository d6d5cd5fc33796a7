"""Memory and disk compared with the estimates of the recipe."""

from __future__ import annotations

from pathlib import Path

from tests.builds.doctor.fake_machine import FakeMachine, severities
from torchyard.builds.recipe import Recipe

HEAVY = Recipe(
    name="pytorch",
    version="2.6.0",
    job_memory_mib=1100,
    heavy={"VariableType_*": 2400, "*flash*": 5300},
)


class TestMemory:
    def test_enough(self, machine: FakeMachine) -> None:
        assert machine.examine(HEAVY, only="memory") == ()

    def test_the_heaviest_compile_does_not_fit_at_all(self, machine: FakeMachine) -> None:
        machine.memory(total_gib=2, available_gib=1.8)
        (finding,) = machine.examine(HEAVY, only="memory")
        assert finding.severity == "blocks"
        assert finding.what == (
            "the largest compile (VariableType_*) needs 2.3 GiB, but there are only 2.0 GiB"
        )
        assert "swapon" in finding.fix

    def test_swap_counts(self, machine: FakeMachine) -> None:
        machine.memory(total_gib=2, available_gib=1.8, swap_gib=4)
        (finding,) = machine.examine(HEAVY, only="memory")
        assert finding.severity == "warns"
        assert "only 1.8 GiB are free" in finding.what

    def test_files_for_gpus_count_only_where_gpus_are_meant(self, machine: FakeMachine) -> None:
        machine.memory(total_gib=4, available_gib=3.9)
        assert machine.examine(HEAVY, only="memory") == ()
        cuda = Recipe(name="pytorch", heavy=HEAVY.heavy, options={"USE_CUDA": True})
        (finding,) = machine.examine(cuda, only="memory")
        assert (finding.severity, "*flash*" in finding.what) == ("blocks", True)

    def test_a_control_group_is_the_limit(self, machine: FakeMachine) -> None:
        machine.file("proc/self/cgroup", "0::/job\n")
        machine.file("sys/fs/cgroup/job/memory.max", str(2 << 30))
        machine.file("sys/fs/cgroup/job/memory.current", "0")
        (finding,) = machine.examine(HEAVY, only="memory")
        assert finding.severity == "blocks"
        assert "in the control group" in finding.why

    def test_too_many_jobs(self, machine: FakeMachine) -> None:
        machine.memory(total_gib=8, available_gib=7)
        plan = machine.plan(HEAVY, jobs=32)
        (finding,) = machine.examine(plan=plan, only="memory")
        assert finding.what == "32 jobs of pytorch need 34.4 GiB together"
        assert finding.fix.startswith("--jobs 7")

    def test_unknown_memory_is_reported_and_does_not_block(self, machine: FakeMachine) -> None:
        (machine.root / "proc/meminfo").unlink()
        assert severities(machine.examine(HEAVY, only="memory")) == ["notes"]

    def test_without_a_recipe_nothing_blocks(self, machine: FakeMachine) -> None:
        machine.memory(total_gib=1, available_gib=0.5)
        assert severities(machine.examine(only="memory")) == ["warns"]


class TestDisk:
    def test_enough(self, machine: FakeMachine) -> None:
        small = Recipe(name="small", disk_gib=0.001)
        findings = machine.examine(plan=machine.plan(small), only="disk")
        assert [f for f in findings if "build needs" in f.what] == []

    def test_too_little_room_for_the_build(self, machine: FakeMachine) -> None:
        large = Recipe(name="large", disk_gib=10_000_000)
        findings = machine.examine(plan=machine.plan(large), only="disk")
        assert findings[0].severity == "blocks"
        assert "TORCHYARD_HOME" in findings[0].fix
        # The folder is not made yet: the nearest one above it is measured.
        assert findings[0].what.startswith(f"{machine.folder} has ")

    def test_components_are_added_up(self, machine: FakeMachine) -> None:
        parts = [Recipe(name=name, disk_gib=4_000_000) for name in ("one", "two")]
        (finding,) = machine.examine(plan=machine.plan(*parts), only="disk")
        assert "the build needs 80000" in finding.what

    def test_a_build_that_was_begun_is_only_warned(self, machine: FakeMachine) -> None:
        large = Recipe(name="large", disk_gib=10_000_000)
        plan = machine.plan(large)
        (Path(plan.folder) / "steps").mkdir(parents=True)
        (finding,) = machine.examine(plan=plan, only="disk")
        assert (finding.severity, "an earlier attempt" in finding.why) == ("warns", True)

    def test_tmpdir_that_is_missing(self, machine: FakeMachine) -> None:
        machine.variables["TMPDIR"] = str(machine.folder / "no such folder")
        findings = machine.examine(only="disk")
        assert "is not a folder" in findings[0].what
        assert findings[0].severity == "warns"
