"""Which steps run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import plan_of, step
from torchyard.builds.plan import Plan, Step, fingerprints
from torchyard.builds.running.runner import Selection, find_step, steps_to_run
from torchyard.errors import UsageError


def chain(folder: Path) -> Plan:
    return plan_of(
        folder,
        step("fetch"),
        step("tree", needs=("fetch",)),
        step("build", needs=("tree",)),
        step("other"),
        step("verify", needs=("build", "other")),
    )


def names(*short: str) -> tuple[str, ...]:
    return tuple(f"part/{name}" for name in short)


def run(plan: Plan, done: tuple[str, ...], **selection: object) -> tuple[str, ...]:
    chosen = Selection(**selection)  # type: ignore[arg-type]  # the test's own words
    return steps_to_run(plan, chosen, fresh=lambda item: item.name in names(*done))


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    assert run(chain(tmp_path), ("fetch", "tree", "build", "other", "verify")) == ()


def test_what_follows_a_step_that_runs_runs_too(tmp_path: Path) -> None:
    done = ("fetch", "build", "other", "verify")
    assert run(chain(tmp_path), done) == names("tree", "build", "verify")


def test_force_runs_everything(tmp_path: Path) -> None:
    everything = ("fetch", "tree", "build", "other", "verify")
    assert run(chain(tmp_path), everything, force=True) == names(*everything)


def test_from_runs_a_step_and_what_depends_on_it(tmp_path: Path) -> None:
    everything = ("fetch", "tree", "build", "other", "verify")
    assert run(chain(tmp_path), everything, start_from=("build",)) == names("build", "verify")


def test_force_does_not_reach_back_behind_from(tmp_path: Path) -> None:
    everything = ("fetch", "tree", "build", "other", "verify")
    found = run(chain(tmp_path), everything, start_from=("build",), force=True)
    assert found == names("build", "verify")


def test_only_runs_one_step(tmp_path: Path) -> None:
    everything = ("fetch", "tree", "build", "other", "verify")
    assert run(chain(tmp_path), everything, only=("build",)) == names("build")


def test_only_needs_what_comes_before(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run(chain(tmp_path), ("fetch",), only=("build",))
    assert "part/tree" in caught.value.what


def test_a_removed_source_is_fetched_only_where_it_is_needed(tmp_path: Path) -> None:
    gone = replace(step("fetch", creates=(str(tmp_path / "gone"),)), kept=False)
    plan = plan_of(tmp_path, gone, step("tree", needs=("fetch",)), step("build", needs=("tree",)))
    assert run(plan, ("fetch", "tree", "build")) == ()
    assert run(plan, ("fetch", "tree")) == names("build")
    assert run(plan, ("fetch", "build")) == names("fetch", "tree", "build")


def test_steps_are_found_by_the_short_name_where_it_is_unique(tmp_path: Path) -> None:
    plan = chain(tmp_path)
    assert find_step(plan, "build", where="--from").name == "part/build"
    assert find_step(plan, "part/build", where="--from").name == "part/build"
    with pytest.raises(UsageError) as caught:
        find_step(plan, "biuld", where="--from")
    assert "--from" in caught.value.what


def test_an_ambiguous_short_name_is_reported(tmp_path: Path) -> None:
    one = step("build")
    two = replace(one, name="second/build", component="second")
    with pytest.raises(UsageError, match="several steps"):
        find_step(plan_of(tmp_path, one, two), "build", where="--from")


def test_fingerprints_change_with_what_comes_before(tmp_path: Path) -> None:
    def prints(*steps: Step) -> dict[str, str]:
        return dict(fingerprints(plan_of(tmp_path, *steps)))

    first = prints(step("a"), step("b", needs=("a",)), step("c"))
    changed = replace(step("a"), inputs=(("gcc", "13"),))
    second = prints(changed, step("b", needs=("a",)), step("c"))
    assert first["part/a"] != second["part/a"]
    assert first["part/b"] != second["part/b"]
    assert first["part/c"] == second["part/c"]


def test_another_title_causes_no_rebuild(tmp_path: Path) -> None:
    before = fingerprints(plan_of(tmp_path, step("a")))
    after = fingerprints(plan_of(tmp_path, replace(step("a"), title="said better")))
    assert before == after
