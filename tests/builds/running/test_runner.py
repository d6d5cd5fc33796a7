"""Running steps: order, parallelism, failures, interrupts, states on disk."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import PATH, plan_of, shell, step
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.plan import BuildEvent, Plan, Step, WriteFile, fingerprints
from torchyard.builds.running.runner import Runner, RunResult, Selection, read_state, touch
from torchyard.builds.running.steps import CommandFailed, StepPerformer
from torchyard.errors import StepFailed


class NullMonitor:
    """A watch that only hands on the step's own variables."""

    def begin(self, step: Step, since: float) -> Mapping[str, str]:  # noqa: ARG002
        return dict(step.variables)

    def on_output(self, step: Step, output: bytes) -> BuildEvent | None:  # noqa: ARG002
        return None

    def end(self, step: Step, wall_s: float, *, whole: bool) -> None:
        pass


def runner_of(
    plan: Plan,
    events: list[BuildEvent] | None = None,
    *,
    selection: Selection | None = None,
    keep_going: bool = False,
) -> Runner:
    folder = BuildFolder(folder=Path(plan.folder))

    def performer(
        item: Step, variables: Mapping[str, str], on_output: Callable[[bytes], None]
    ) -> StepPerformer:
        return StepPerformer(
            step=item,
            folder=folder,
            variables=variables,
            verify=lambda *_: None,
            on_output=on_output,
        )

    def explain(item: Step, done: StepPerformer, error: CommandFailed) -> StepFailed:
        return StepFailed(f"{item.name}: {error.command_exit_code}", hint=done.rerun_script)

    return Runner(
        plan=plan,
        folder=folder,
        performer=performer,
        explain=explain,
        watch=NullMonitor(),
        listener=(events if events is not None else []).append,
        selection=selection or Selection(),
        keep_going=keep_going,
    )


def run(plan: Plan, **options: bool) -> RunResult:
    return runner_of(plan, keep_going=options.get("keep_going", False)).run()


def status(plan: Plan, name: str) -> str:
    state = read_state(BuildFolder(folder=Path(plan.folder)).state(f"part/{name}"))
    return state.status if state else ""


def test_steps_run_in_order_and_leave_logs(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        step("one", shell("echo 1 >> order; echo said")),
        step("two", shell("echo 2 >> order"), needs=("one",)),
    )
    result = run(plan)
    assert result.ran == ("part/one", "part/two")
    assert (tmp_path / "order").read_text() == "1\n2\n"
    assert "said" in (tmp_path / "logs/part-one.log").read_text()
    assert "$ sh -c" in (tmp_path / "logs/part-one.log").read_text()


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, step("one", shell("echo 1 >> order")))
    run(plan)
    result = run(plan)
    assert (result.ran, result.skipped) == ((), ("part/one",))
    assert (tmp_path / "order").read_text() == "1\n"


def test_a_changed_step_runs_again(tmp_path: Path) -> None:
    run(plan_of(tmp_path, step("one", shell("echo 1 >> order"))))
    run(plan_of(tmp_path, step("one", shell("echo 2 >> order"))))
    assert (tmp_path / "order").read_text() == "1\n2\n"


def test_removed_output_is_recreated(tmp_path: Path) -> None:
    made = tmp_path / "made"
    plan = plan_of(tmp_path, step("one", shell("echo x > made"), creates=(str(made),)))
    run(plan)
    made.unlink()
    run(plan)
    assert made.exists()


def test_files_are_written_whole_and_executable(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "script"
    plan = plan_of(
        tmp_path, step("one", WriteFile(path=str(path), text="#!/bin/sh\n", executable=True))
    )
    run(plan)
    assert path.read_text() == "#!/bin/sh\n"
    assert os.access(path, os.X_OK)


def test_a_failure_blocks_its_dependents_and_is_reported(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        step("one", shell("echo broken; exit 7")),
        step("two", shell("true"), needs=("one",)),
    )
    result = run(plan)
    assert list(result.failed) == ["part/one"]
    assert result.blocked == ("part/two",)
    assert not result.good
    assert status(plan, "one") == "failed"
    assert status(plan, "two") == ""


def test_keep_going_runs_what_does_not_need_the_failed_one(tmp_path: Path) -> None:
    steps = (
        step("bad", shell("exit 1")),
        step("slow", shell("sleep 0.3; echo ok > slow")),
        step("after", shell("echo ok > after"), needs=("slow",)),
        step("blocked", shell("true"), needs=("bad",)),
    )
    result = run(plan_of(tmp_path, *steps), keep_going=True)
    assert (tmp_path / "after").exists()
    assert list(result.failed) == ["part/bad"]
    assert result.blocked == ("part/blocked",)


def test_without_keep_going_nothing_new_starts(tmp_path: Path) -> None:
    steps = (
        step("bad", shell("exit 1")),
        step("slow", shell("sleep 0.5; echo ok > slow")),
        step("after", shell("echo ok > after"), needs=("slow",)),
    )
    run(plan_of(tmp_path, *steps))
    assert (tmp_path / "slow").exists(), "a running step is not cut off by another's failure"
    assert not (tmp_path / "after").exists()


def test_steps_that_do_not_need_each_other_run_side_by_side(tmp_path: Path) -> None:
    wait = "i=0; while [ ! -e {other} ]; do i=$((i+1)); [ $i -gt 200 ] && exit 1; sleep 0.05; done"
    plan = plan_of(
        tmp_path,
        step("a", shell("touch a; " + wait.format(other="b"))),
        step("b", shell("touch b; " + wait.format(other="a"))),
    )
    assert run(plan).good


def test_the_environment_is_exactly_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED", "1")
    plan = plan_of(tmp_path, step("one", shell('echo "leaked=${LEAKED-no} path=$PATH"')))
    run(plan)
    log = (tmp_path / "logs/part-one.log").read_text()
    assert "leaked=no" in log
    assert f"path={PATH}" in log


def test_a_missing_program_is_a_failed_step(tmp_path: Path) -> None:
    from torchyard.builds.plan import Command

    plan = plan_of(tmp_path, step("one", Command(argv=("no-such-program-here",))))
    result = run(plan)
    assert not result.good
    assert status(plan, "one") == "failed"


def test_the_command_can_be_entered_again(tmp_path: Path) -> None:
    import subprocess

    plan = plan_of(tmp_path, step("one", shell('echo "it\'s $PATH" > again; exit 3')))
    error = run(plan).failed["part/one"]
    (tmp_path / "again").unlink()
    ended = subprocess.run(["sh", error.hint], check=False, cwd="/")
    assert ended.returncode == 3
    assert (tmp_path / "again").read_text() == f"it's {PATH}\n"


def test_an_interrupt_marks_the_step_as_interrupted(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, step("one", shell("echo $$ > pid; sleep 60")))
    runner = runner_of(plan)

    def interrupt() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    deadline = time.monotonic() + 60
    while status(plan, "one") == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert status(plan, "one") == "interrupted"


def test_time_of_interrupted_runs_is_kept(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    plan = plan_of(tmp_path, step("one", shell(f"sleep 0.3; test -e {flag}")))
    run(plan)
    flag.touch()
    run(plan)
    state = read_state(BuildFolder(folder=tmp_path).state("part/one"))
    assert state is not None
    assert state.earlier_s >= 0.3
    assert state.wall_s >= 0.3


def test_touch_accepts_the_results_of_a_changed_plan(tmp_path: Path) -> None:
    made = tmp_path / "made"
    old = plan_of(tmp_path, step("one", shell("echo old > made"), creates=(str(made),)))
    run(old)
    new = plan_of(tmp_path, step("one", shell("echo new > made"), creates=(str(made),)))
    path = BuildFolder(folder=tmp_path).state("part/one")
    assert touch(new.steps[0], path, fingerprints(new)["part/one"])
    assert run(new).ran == ()
    assert made.read_text() == "old\n"
    made.unlink()
    assert not touch(old.steps[0], path, fingerprints(old)["part/one"]), "there is nothing to take"


def test_another_meter_causes_no_rebuild(tmp_path: Path) -> None:
    def plan(meter: str) -> Plan:
        tool = replace(step("meter", shell(f"echo {meter}")), counts=False)
        return plan_of(
            tmp_path, tool, step("build", shell("echo built >> order"), needs=("meter",))
        )

    run(plan("one"))
    assert run(plan("two")).ran == ("part/meter",)
    assert (tmp_path / "order").read_text() == "built\n"


def test_a_step_waits_for_what_comes_before_what_is_done(tmp_path: Path) -> None:
    def plan(meter: str) -> Plan:
        tool = replace(step("meter", shell(f"sleep 0.4; echo {meter} >> order")), counts=False)
        return plan_of(
            tmp_path,
            tool,
            step("configure", shell("true"), needs=("meter",)),
            step("build", shell("echo built >> order"), needs=("configure",)),
        )

    run(plan("one"))
    runner_of(plan("two"), selection=Selection(start_from=("build",))).run()
    assert (tmp_path / "order").read_text() == "one\nbuilt\ntwo\nbuilt\n"


def test_events_of_a_run(tmp_path: Path) -> None:
    events: list[BuildEvent] = []
    plan = plan_of(tmp_path, step("one", shell("true")), step("two", shell("exit 1")))
    runner_of(plan, events, keep_going=True).run()
    assert {(event.kind, event.step) for event in events} == {
        ("start", "part/one"),
        ("done", "part/one"),
        ("start", "part/two"),
        ("failed", "part/two"),
    }


def test_a_damaged_state_means_the_step_runs_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, step("one", shell("echo 1 >> order")))
    run(plan)
    BuildFolder(folder=tmp_path).state("part/one").write_text("{half")
    run(plan)
    assert (tmp_path / "order").read_text() == "1\n1\n"


def test_leftover_processes_are_killed(tmp_path: Path) -> None:
    # A number of seconds that no other process sleeps for; its own pid may mean another outside.
    duration = f"{os.getpid()}.{time.monotonic_ns()}"
    plan = plan_of(tmp_path, step("one", shell(f"sleep {duration} > /dev/null 2>&1 & echo left")))
    assert run(plan).good
    deadline = time.monotonic() + 60
    while (alive := sleepers(duration)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive


def sleepers(duration: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", duration.encode()]:
            found.append(int(entry.name))
    return found
