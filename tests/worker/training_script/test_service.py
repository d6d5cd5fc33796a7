"""A training script as a workload: its steps are found, timed and compared, and every trouble is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.worker.training_script.script_process import (
    EAGER,
    LIMITS,
    MODEL,
    ask,
    checked,
    other,
    run_steps,
    running,
    write_script,
)
from torchyard.bench.launch import VariantFailed
from torchyard.core.study import Variant

pytestmark = pytest.mark.torch

LOG = """
    from pathlib import Path

    def log(text):
        with Path("log.txt").open("a") as file:
            file.write(text + "\\n")
"""
FOREVER = """
    for number in range(10**9):
        train_step(number)
"""
LOGGED = """
    for number in range(10**9):
        train_step(number)
        log(str(number))
"""


def failure_of(script: Path, variant: Variant = EAGER, *, step: str = "") -> VariantFailed:
    """The failure to get the script to its first step, or to warm it up."""
    try:
        with running(script, variant, step=step) as processes:
            ask(processes, "warm", variant, seconds=0.5)
            run_steps(processes, 5, variant)
    except VariantFailed as failed:
        return failed
    raise AssertionError("the script was timed")


def test_a_block_runs_as_many_steps_as_asked_and_the_script_then_waits(tmp_path: Path) -> None:
    script = write_script(tmp_path, MODEL, LOG, LOGGED)
    with running(script) as processes:
        log = tmp_path / "log.txt"
        assert not log.exists()  # the first step has ended, and the code behind it has not run
        answer = run_steps(processes, 7)
        assert answer["inner"] == 7
        assert len(answer["samples_ns"]) == 1
        assert answer["samples_ns"][0] * 7 == pytest.approx(answer["wall_ns"])
        assert log.read_text().split() == [str(number) for number in range(7)]
        run_steps(processes, 3)
        assert len(log.read_text().split()) == 10


def test_the_script_sees_its_arguments_folder_and_main(tmp_path: Path) -> None:
    text = """
        import argparse
        from pathlib import Path

        parser = argparse.ArgumentParser()
        parser.add_argument("--word")
        word = parser.parse_args().word
        import beside

        def main():
            Path("seen.txt").write_text(f"{word} {Path('data.txt').read_text()} {beside.NAME}")
            for number in range(10**9):
                train_step(number)

        if __name__ == "__main__":
            main()
    """
    place = tmp_path / "place"
    place.mkdir()
    (place / "data.txt").write_text("relative")
    (tmp_path / "beside.py").write_text("NAME = 'neighbour'")
    script = write_script(tmp_path, MODEL, text)
    with running(script, folder=place, arguments="--word 'two words'"):
        assert (place / "seen.txt").read_text() == "two words relative neighbour"


@pytest.mark.parametrize(
    ("ending", "kind", "words"),
    [
        ("", "cannot-build", "ended without a step of an optimizer"),
        ("sys.exit(0)", "cannot-build", "ended without a step of an optimizer"),
        ("sys.exit(3)", "raised", "exited with code 3"),
        ("import os; os._exit(4)", "crashed", "exited with code 4"),
        ("raise ValueError('no data')", "raised", "ValueError: no data"),
        ("this is no Python", "cannot-build", "cannot read the script"),
        ("for number in range(3): train_step(number)", "cannot-build", "ended after 3 steps"),
        (
            "for number in range(9):\n    assert number < 2, 'at step 3'\n    train_step(number)",
            "raised",
            "AssertionError: at step 3",
        ),
        (
            "for number in range(9):\n    train_step(number)\n    if number == 5: sys.exit('bad')",
            "raised",
            "exited with code 'bad'",
        ),
    ],
)
def test_a_script_that_cannot_be_timed_says_why(
    tmp_path: Path, ending: str, kind: str, words: str
) -> None:
    failed = failure_of(write_script(tmp_path, MODEL, ending))
    assert failed.failure.kind == kind
    assert words in failed.failure.message


def test_a_script_that_reaches_no_step_is_stopped(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import time\nwhile True:\n    time.sleep(0.1)\n")
    settings = replace(LIMITS, step_limit_s=4.0)
    with pytest.raises(VariantFailed) as raised, running(script, settings=settings):
        pass
    assert raised.value.failure.kind == "timeout"
    assert "reached no step within 4.00 s" in raised.value.failure.message
    assert "--step" in raised.value.failure.hint


def test_a_script_without_an_optimizer_is_timed_by_a_named_function(tmp_path: Path) -> None:
    text = """
        weight = torch.ones(3, requires_grad=True)

        def update():
            loss = (weight * weight).sum()
            loss.backward()
            with torch.no_grad():
                weight.sub_(0.1 * weight.grad)
                weight.grad = None
            return loss

        for number in range(10**9):
            update()
            log(str(number))
    """
    script = write_script(tmp_path, MODEL, LOG, text)
    with running(script, EAGER, other("again"), step="update") as processes:
        (accuracy,) = checked(processes, other("again"))
        assert accuracy.status == "pass"
        assert accuracy.compared == 6  # losses and returned tensors
        before = len((tmp_path / "log.txt").read_text().split())
        run_steps(processes, 4)
        assert len((tmp_path / "log.txt").read_text().split()) == before + 4
        notes = ask(processes, "measure")["notes"]
    assert "a step is a call of update" in notes


@pytest.mark.parametrize("name", ["Trainer.step", "trainer.step", "beside.Base.inner_step"])
def test_a_step_is_a_method_of_a_class_an_object_or_an_import(tmp_path: Path, name: str) -> None:
    (tmp_path / "beside.py").write_text(
        "class Base:\n"
        "    def inner_step(self, number):\n"
        "        return self.function(number)\n"
        "    def train(self, limit):\n"
        "        for number in range(limit):\n"
        "            self.step(number)\n"
    )
    text = """
        from beside import Base

        class Trainer(Base):
            def __init__(self):
                self.function = train_step
            def step(self, number):
                for _ in range(2):
                    self.inner_step(number)
                log(str(number))

        def main():
            trainer = Trainer()
            trainer.train(10**9)

        main()
    """
    script = write_script(tmp_path, MODEL, LOG, text)
    with running(script, step=name) as processes:
        run_steps(processes, 6)
    steps = len((tmp_path / "log.txt").read_text().split())
    # The first step ends before the first block.
    assert steps == (7 if name != "beside.Base.inner_step" else 3)


def test_a_named_optimizer_may_have_a_scheduler(tmp_path: Path) -> None:
    text = """
        def main():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
            for number in range(10**9):
                model(torch.ones(2, 8)).mean().backward()
                optimizer.step()
                scheduler.step()
                log(str(number))

        main()
    """
    with running(write_script(tmp_path, MODEL, LOG, text), step="optimizer.step") as processes:
        run_steps(processes, 4)
    assert len((tmp_path / "log.txt").read_text().split()) == 4


def test_an_unknown_step_is_an_error(tmp_path: Path) -> None:
    failed = failure_of(write_script(tmp_path, MODEL, FOREVER), step="Trainer.fit")
    assert failed.failure.kind == "cannot-build"
    assert "has no Trainer.fit" in failed.failure.message
    never = failure_of(
        write_script(tmp_path, MODEL, "def fit(): pass\n", "train_step(1)\n"), step="fit"
    )
    assert "ended without a call of fit" in never.failure.message


def test_a_step_of_several_optimizers_ends_with_the_last_one(tmp_path: Path) -> None:
    text = """
        critic = nn.Linear(4, 1)
        own = torch.optim.Adam(critic.parameters())
        for number in range(10**9):
            for _ in range(3):
                own.zero_grad()
                critic(model(torch.ones(2, 8)).detach()).mean().backward()
                own.step()
                log("critic")
            train_step(number)
            log("generator")
    """
    with running(write_script(tmp_path, MODEL, LOG, text)) as processes:
        ask(processes, "warm", seconds=0.3)
        before = (tmp_path / "log.txt").read_text().split()
        run_steps(processes, 5)
        after = (tmp_path / "log.txt").read_text().split()[len(before) :]
        assert after.count("generator") == 5
        assert after.count("critic") == 15
        notes = ask(processes, "measure")["notes"]
    assert any("has 2 optimizers" in note for note in notes)


def test_accumulated_gradients_and_closures_belong_to_their_step(tmp_path: Path) -> None:
    text = """
        searching = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure():
            log("closure")
            searching.zero_grad()
            loss = model(torch.ones(2, 8)).square().mean()
            loss.backward()
            return loss

        optimizer = searching
        while True:
            for _ in range(3):
                log("micro-batch")
                model(torch.ones(2, 8)).mean().backward()
            optimizer.step(closure)
    """
    with running(write_script(tmp_path, MODEL, LOG, text)) as processes:
        before = (tmp_path / "log.txt").read_text().split()
        run_steps(processes, 4)
        lines = (tmp_path / "log.txt").read_text().split()[len(before) :]
    assert lines.count("micro-batch") == 12
    assert lines.count("closure") >= 4


def test_a_script_that_ends_is_started_again_and_says_so(tmp_path: Path) -> None:
    text = """
        log("start")
        for number in range(6):
            train_step(number)
            log(str(number))
    """
    with running(write_script(tmp_path, MODEL, LOG, text), EAGER, other("again")) as processes:
        (accuracy,) = checked(processes, other("again"))
        assert accuracy.status == "pass"
        ask(processes, "warm", seconds=0.3)
        answer = run_steps(processes, 9)
        # A run has two steps that are timed: those after the first four.
        assert answer["inner"] == 2
        notes = ask(processes, "measure")["notes"]
    assert any("ended after 6 steps and was started again" in note for note in notes)
    assert (tmp_path / "log.txt").read_text().split().count("start") > 3


def test_much_output_goes_to_the_log(tmp_path: Path) -> None:
    text = """
        for number in range(10**9):
            print("x" * 10000, flush=True)
            print("y" * 10000, file=sys.stderr)
            train_step(number)
    """
    with running(write_script(tmp_path, MODEL, text)) as processes:
        assert run_steps(processes, 50)["inner"] == 50


def test_processes_of_data_loaders_wait_with_the_script(tmp_path: Path) -> None:
    text = """
        import time
        from torch.utils.data import DataLoader, Dataset

        class Slow(Dataset):
            def __len__(self):
                return 10**6
            def __getitem__(self, index):
                time.sleep(0.01)
                return torch.ones(8)

        if __name__ == "__main__":
            for number, batch in enumerate(DataLoader(Slow(), batch_size=4, num_workers=2)):
                train_step(number)
    """
    with running(write_script(tmp_path, MODEL, text)) as processes:
        warm = ask(processes, "warm", seconds=1.0)
        assert warm["workers"] == 2
        assert run_steps(processes, 8)["inner"] == 8
        worker = psutil.Process(processes.hellos[EAGER.process_key]["pid"])
        states = {one.status() for one in worker.children() if one.children() == []}
        assert psutil.STATUS_STOPPED in states
        # Two processes need 20 ms for a step, whose computation takes far less.
        assert ask(processes, "measure")["data_share"] > 0.5
        assert run_steps(processes, 8)["inner"] == 8


def test_a_step_without_a_data_loader_does_not_wait(tmp_path: Path) -> None:
    with running(write_script(tmp_path, MODEL, FOREVER)) as processes:
        answer = ask(processes, "measure")
    assert answer["data_share"] == 0.0
    assert answer["peak_memory_bytes"] > 0


def test_every_variant_has_the_same_random_numbers_and_its_own_state(tmp_path: Path) -> None:
    text = """
        import random
        import numpy as np

        for number in range(10**9):
            log(str([random.random(), float(np.random.rand()), float(torch.rand(()))]))
            with torch.no_grad():
                model[0].weight.add_(torch.randn(16, 8))
            train_step(number)
    """
    script = write_script(tmp_path, MODEL, LOG, text)
    with running(script, EAGER, other("again")) as processes:
        (accuracy,) = checked(processes, other("again"))
    assert accuracy.status == "pass"
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) == 8
    first, second = [lines[0], *lines[2:5]], [lines[1], *lines[5:]]
    assert first == second
    assert len({tuple(json.loads(line)) for line in first}) == 4


def test_a_script_without_seeds_of_its_own_is_not_called_wrong(tmp_path: Path) -> None:
    text = """
        import os
        with torch.no_grad():
            model[0].weight.copy_(torch.randn(16, 8, generator=torch.Generator().manual_seed(os.getpid())))
    """
    script = write_script(tmp_path, MODEL, text, FOREVER)
    with running(script, EAGER, other("again")) as processes:
        (accuracy,) = checked(processes, other("again"))
    assert accuracy.status == "nondeterministic"
    assert "not compared" in accuracy.detail


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("0 * loss", "fail"),
        ("loss * float('nan')", "fail"),
        ("loss * (1 + 1e-7)", "pass"),
        ("loss + 0 * torch.rand(())", "pass"),
        ("loss * torch.rand(())", "random"),
        ("1.005 * loss", "unchecked"),
    ],
)
def test_other_results_of_a_candidate_are_found(tmp_path: Path, code: str, status: str) -> None:
    text = f"""
        import os
        for number in range(10**9):
            loss = model(torch.full((4, 8), 0.5 + 0.01 * (number % 7))).square().mean()
            if os.environ.get("OTHER") and number:
                loss = {code}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
    script = write_script(tmp_path, MODEL, text)
    candidate = other("again")
    environment = replace(candidate.environment, variables=(("OTHER", "1"),))
    candidate = replace(candidate, environment=environment)
    with running(script, EAGER, candidate) as processes:
        (accuracy,) = checked(processes, candidate)
    assert accuracy.status == status


def test_compiled_and_autocast_modules_train_alike(tmp_path: Path) -> None:
    compiled = other("compiled", backend="aot_eager")
    lower = other("amp", precision="amp")
    script = write_script(tmp_path, MODEL, FOREVER)
    with running(script, EAGER, compiled, lower) as processes:
        first, second = checked(processes, compiled, lower)
        assert first.status == "pass"
        assert second.status in {"pass", "less-accurate"}
        ask(processes, "warm", compiled, seconds=0.3)
        answer = ask(processes, "measure", compiled)
        assert answer["graphs"] == 1
        assert "applies to Sequential" in answer["notes"]
        assert ask(processes, "measure")["graphs"] is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"precision": "bfloat16"}, "bfloat16 cannot be applied"),
        ({"backend": "export"}, "not by export"),
        ({"options": (("channels-last", True),)}, "channels-last does not apply"),
    ],
)
def test_variants_that_do_not_apply_are_refused(
    tmp_path: Path, fields: dict[str, object], words: str
) -> None:
    script = write_script(tmp_path, MODEL, FOREVER)
    with pytest.raises(VariantFailed, match=words), running(script, other("other", **fields)):
        pass


def test_a_script_without_modules_is_not_compiled_silently(tmp_path: Path) -> None:
    text = """
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        while True:
            (weight * weight).sum().backward()
            optimizer.step()
    """
    script = write_script(tmp_path, "import torch\n", text)
    compiled = other("compiled", backend="aot_eager")
    with (
        pytest.raises(VariantFailed, match=r"calls no torch\.nn\.Module"),
        running(script, compiled),
    ):
        pass


def test_a_variant_that_compiles_nothing_is_an_error(tmp_path: Path) -> None:
    text = """
        import copy

        for number in range(10**9):
            train_step(number)
            model = copy.deepcopy(nn.Sequential(*model))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    script = write_script(tmp_path, MODEL, text)
    compiled = other("compiled", backend="aot_eager")
    failed = failure_of(script, compiled, step="train_step")
    assert "compiled nothing" in failed.failure.message


def test_a_script_that_compiles_itself_is_not_compiled_twice(tmp_path: Path) -> None:
    text = "model = torch.compile(model, backend='eager')\n"
    script = write_script(tmp_path, MODEL, text, FOREVER)
    compiled = other("compiled", backend="aot_eager")
    with (
        pytest.raises(VariantFailed, match="compiles Sequential itself"),
        running(script, compiled),
    ):
        pass
    with running(script) as processes:
        assert run_steps(processes, 3)["inner"] == 3


def test_a_trainer_of_transformers_is_timed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    text = """
        import torch
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

        config = BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16, num_labels=2,
        )
        rows = [{"input_ids": torch.arange(8) % 50, "labels": torch.tensor(1)} for _ in range(64)]
        arguments = TrainingArguments(
            output_dir="out", max_steps=100000, per_device_train_batch_size=4, report_to=[],
            disable_tqdm=True, save_strategy="no", logging_strategy="no", use_cpu=True,
        )
        Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=rows).train()
    """
    script = write_script(tmp_path, text)
    with running(script, EAGER, other("again")) as processes:
        (accuracy,) = checked(processes, other("again"))
        assert accuracy.status == "pass"
        assert accuracy.compared > 10
        ask(processes, "warm", seconds=0.5)
        assert run_steps(processes, 5)["inner"] == 5
