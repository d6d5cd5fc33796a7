"""The complete view of a machine: facts of all sections, activity, ranked advice."""

from __future__ import annotations

import time
from pathlib import Path

from tests.machine.trees import make_tree
from torchyard.machine.advice import view_machine
from torchyard.machine.facts import FACT_SECTIONS, RUN_FACTS, read_facts
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree


def test_a_quiet_copy_is_fit_with_advice(tmp_path: Path) -> None:
    view = view_machine(Machine(files=FileTree(make_tree("intel-pstate", tmp_path))))
    assert view.fit
    assert view.advice[0].effect == "large"
    assert list(dict.fromkeys(fact.section for fact in view.facts)) == list(FACT_SECTIONS)
    names = [(fact.section, fact.name) for fact in view.facts]
    assert len(set(names)) == len(names)
    assert ("load", "CPUs used by other programs") in names


def test_a_busy_copy_is_unfit(tmp_path: Path) -> None:
    make_tree("cloud-vm", tmp_path)
    (tmp_path / "proc/loadavg").write_text("2.10 1.80 1.00 3/100 5\n")
    view = view_machine(Machine(files=FileTree(tmp_path)))
    assert not view.fit
    assert view.advice[0].name == "busy"


def test_no_machine_at_all(tmp_path: Path) -> None:
    view = view_machine(Machine(files=FileTree(tmp_path)))
    assert view.fit
    assert all(fact.value is None for fact in view.facts)


def test_this_machine_in_the_time_of_its_window() -> None:
    before = time.monotonic()
    view = view_machine(Machine(), window_s=0.2)
    assert time.monotonic() - before >= 0.2
    assert view.facts


def test_runs_keep_a_selection_of_the_facts(tmp_path: Path) -> None:
    facts = read_facts(make_tree("amd-epp", tmp_path))
    assert facts == {
        "architecture": "x86_64",
        "kernel": "6.12.9-arch1",
        "cpu": "AMD EPYC 7763 64-Core Processor",
        "cores": "8",
        "memory": "93.8 GiB",
        "load": "0.08 0.12 0.09",
        "frequency driver": "amd-pstate-epp",
        "governor": "powersave",
        "turbo off": "0",
        "energy preference": "balance_performance",
        "smt": "on",
        "set apart": "none",
        "processors that limits leave": "all",
        "transparent huge pages": "[always] madvise never",
        "NUMA balancing": "0",
        "address randomisation": "2",
        "virtualisation": "none seen",
        "clock source": "tsc",
    }
    assert list(facts) == list(RUN_FACTS)


def test_facts_of_a_run_are_cheap() -> None:
    """They take about 20 ms; this guards against a reading that takes a second."""
    costs_s = []
    for _ in range(5):
        before = time.thread_time()
        read_facts()
        costs_s.append(time.thread_time() - before)
    assert min(costs_s) < 0.5
