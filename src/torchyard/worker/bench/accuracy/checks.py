"""The checks of one process: before timing, in timed blocks, and after the last block.

`reference` computes the baseline's results on the workload's inputs and on a second draw; `judge` checks a candidate
on both. Every block runs on its own draw and keeps results of some calls, which `verify` compares. `recheck` runs
after the last block: further calls, the state of the process, and in the first launch the checks of `behaviour`.

Quantised weights differ from the baseline's by design. Such results are neither `pass`, which means equal up to
rounding, nor wrong: they are compared with those of the dequantised weights, and the difference from the baseline
is reported.
"""

import contextlib
import math
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from torchyard.worker.bench.accuracy import behaviour
from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.accuracy.plain_values import GROUP
from torchyard.worker.bench.accuracy.shared_state import (
    EagerTime,
    ModuleState,
    computes_without_calls,
)
from torchyard.worker.bench.accuracy.tensors import (
    LAZY,
    largest_difference,
    place_for,
    relative_distance,
    shapes_of,
    to_plain,
)
from torchyard.worker.bench.accuracy.timed_results import (
    COMPARABLE,
    TimedCheck,
    Verifier,
    distance,
)
from torchyard.worker.bench.model import ALL, LEVELS, NONE, Model
from torchyard.worker.bench.process_state import SHARED_FUNCTIONS
from torchyard.worker.bench.timing import run_block
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.wire import CHANGED, REPLACED

SECOND_DRAW = 1
LAST_CALLS = 8
LAST_CALLS_NS = 400_000_000
UNFINISHED_NS = 100_000
UNFINISHED_SHARE = 0.2
"""Limits of device work after the timed part, absolute and as a share of a sample."""
WITHIN = 1e-3
"""Largest relative difference of the baseline's results before and after a launch."""

_clock = time.perf_counter_ns


class Checks:
    """The checks of this process, and their findings for each variant."""

    def __init__(self) -> None:
        self._threads = threading.active_count()
        self._seed = 0
        self._limit_bytes: Optional[int] = None
        self._modules: List[Tuple[Model, ModuleState]] = []
        self._verifiers: Dict[str, Verifier] = {}
        self._blocks: Dict[str, TimedCheck] = {}
        self._unfinished: Dict[str, List[bool]] = {}
        """For each block, by variant: whether the device continued after its timed part."""
        self._untrusted: Dict[str, List[str]] = {}
        self._notes: Dict[str, List[str]] = {}
        self._baselines: Dict[int, Tuple[VariantRunner, List[Any]]] = {}
        self._computing = False
        """Whether threads or processes were found that compute all the time."""
        self._eager_times: Dict[int, EagerTime] = {}
        """By the model: the time of eager code before any candidate has run."""

    def begin(self, models: List[Model], seed: int, runners: Iterable[VariantRunner] = ()) -> None:
        """Record the shared state after everything is built and before any variant runs.

        Eager code runs on the models of those `runners` that run user code: what it changes itself is
        attributed to no variant.
        """
        self._seed = seed
        self._modules = [(model, ModuleState(model)) for model in models]
        for model in models:
            kinds = {type(part) for part in model.module.modules()}
            if model.optimizer is not None:
                kinds.add(type(model.optimizer))
            for kind in kinds:
                SHARED_FUNCTIONS.add(kind.__name__, kind)
            for name in modules_of(model, kinds):
                SHARED_FUNCTIONS.add(name, sys.modules[name])
        states = {id(model): state for model, state in self._modules}
        for runner in runners:
            key = id(runner.model)
            if not runner.runs_user_code or runner.several_ranks or key in self._eager_times:
                continue
            with contextlib.suppress(Exception):  # reported where its results are needed
                self._eager_times[key] = EagerTime(runner.peer(), states[key])
        self._computing = bool(self._eager_times) and computes_without_calls()

    def references(self, runner: VariantRunner, limit_bytes: Optional[int]) -> Dict[str, Any]:
        """Return references of two draws, and which inputs can be varied."""
        self._limit_bytes = limit_bytes
        model = runner.model
        first = accuracy.make_reference(runner, self._seed, limit_bytes)
        level = self._level(runner)
        references: Dict[str, Any] = {"varied": level, "draws": [[0, first]]}
        if level != NONE and not first["random"]:
            model.draw_inputs(SECOND_DRAW, level)
            second = accuracy.make_reference(runner, self._seed, limit_bytes)
            references["draws"].append([SECOND_DRAW, second])
            model.draw_inputs(0, level)
        return references

    def _level(self, runner: VariantRunner) -> str:
        """Return the widest variation of the inputs that the baseline accepts."""
        finite = behaviour.finite_share(runner.results(self._seed)[0])
        for level in LEVELS:
            if level == NONE or not runner.model.varies(level):
                continue
            runner.model.draw_inputs(SECOND_DRAW, level)
            try:
                share = behaviour.finite_share(runner.results(self._seed)[0])
            except Exception:
                share = -1.0
            runner.model.draw_inputs(0, level)
            if share >= finite:
                return level
        return NONE

    def judge(self, runner: VariantRunner, reference: Dict[str, Any]) -> Dict[str, Any]:
        """Return the accuracy record of a candidate, with notes and reasons for distrust."""
        unlike = runner.weights != str(reference["draws"][0][1].get("weights", ""))
        compared, reference = reference, self._own_reference(runner) if unlike else reference
        level = str(reference["varied"])
        model = runner.model
        records = []
        baseline = reference["draws"][0][1]["baseline"]
        first = None if runner.several_ranks else runner.first_call(self._seed, baseline)
        for draw, record in reference["draws"]:
            model.draw_inputs(draw, level)
            records.append(self._judge_draw(runner, draw, record, first))
            first = None  # of the first draw, the workload's own values
        model.draw_inputs(0, level)
        result = accuracy.worst(records)
        if result["status"] != "fail" and not _has_finite_values(baseline):
            result = dict(result, status="unchecked", detail="no finite number in the results")
        draws_numbers = bool(reference["draws"][0][1]["random"])
        if result["status"] == "fail" and not draws_numbers:
            reason = self._why_undetermined(runner, level)
            if reason:
                detail = "%s; %s" % (reason, result["detail"])
                result = dict(result, status="unchecked", method="none", detail=detail)
        comparable = result["status"] in COMPARABLE and not draws_numbers
        failures: List[str] = []
        if comparable or draws_numbers:
            failures = self._behaviour(runner, level, values=comparable)
        if runner.rank_difference:
            failures = [runner.rank_difference, *failures]
        if draws_numbers:
            text = "uses random numbers: results of its timed calls were not compared"
            self._add(self._notes, runner, [text])
        if comparable and model.built.stream is not None:
            failures += self._compare_streams(runner, model.built.stream)
        if failures:
            result = dict(result, status="fail", detail="; ".join(failures[:3]))
        if unlike:
            result = describe_changed_weights(runner, self._seed, compared["draws"][0][1], result)
        if runner.wrong_weights:
            result = dict(result, status="fail", detail=runner.wrong_weights)
        verifier = self._verifiers.get(runner.name)
        self._attribute_changes(runner)
        return dict(
            result,
            notes=self._notes.get(runner.name, []),
            untrusted=self._untrusted.get(runner.name, []),
            accepted=None if verifier is None else verifier.accepted,
            comparable=comparable and not failures,
        )

    def _judge_draw(
        self, runner: VariantRunner, draw: int, record: Dict[str, Any], first: Optional[Any]
    ) -> Dict[str, Any]:
        """Return the record of a draw; `first` are results of the first call on it."""
        judged = dict(accuracy.judge(runner, self._seed, record))
        if judged["status"] in COMPARABLE and not record["random"]:
            verifier = self._verifier(runner, None)
            results = runner.results(self._seed, record["baseline"])[0]
            once_more = accuracy.judge(runner, self._seed, record, results=results)
            if once_more["status"] == "fail":
                judged = dict(once_more)
            else:
                verifier.accept(results, verifier.peer.results(self._seed)[0])
            if first is not None:
                at_first = accuracy.judge(runner, self._seed, record, results=first)
                if at_first["status"] == "fail":
                    judged = dict(at_first, detail="in the first call: %s" % at_first["detail"])
        record.pop("_judged", None)
        if judged["status"] == "fail" and draw != 0:
            judged["detail"] = "with other input values: %s" % judged["detail"]
        return judged

    def _behaviour(self, runner: VariantRunner, level: str, values: bool) -> List[str]:
        peer = self._verifier(runner, None).peer
        wrong, notes = behaviour.check_structure(runner, peer, self._seed)
        if values:
            for more_wrong, more_notes in (
                behaviour.check_earlier_results(runner, peer, self._seed, SECOND_DRAW, level),
                behaviour.check_parameters(runner, peer, self._seed),
            ):
                wrong += more_wrong
                notes += more_notes
        lazy = [note for note in notes if note.startswith(LAZY)]
        self._add(self._untrusted, runner, lazy)
        self._add(self._notes, runner, [note for note in notes if note not in lazy])
        return wrong

    def _why_undetermined(self, runner: VariantRunner, level: str) -> str:
        """Return why results that differ from those of eager code are not therefore wrong."""
        peer = self._verifier(runner, None).peer
        if not runner.other_weights:
            return behaviour.depends_on_earlier_calls(runner, peer, self._seed, SECOND_DRAW, level)
        if behaviour.check_structure(runner, peer, self._seed)[0]:
            return ""
        return "it has " + runner.other_weights

    def _own_reference(self, runner: VariantRunner) -> Dict[str, Any]:
        """Return references of eager code with the dequantised weights of the variant."""
        return self.references(self._verifier(runner, None).peer, self._limit_bytes)

    def _compare_streams(self, runner: VariantRunner, stream: Callable[..., Any]) -> List[str]:
        """Generate a text with the variant and the eager model; return failures, and note the difference."""
        from torchyard.worker.suites.generation import compare_streams, stream_problem

        others = {"the baseline": self._verifier(runner, None).peer}
        if runner.unquantised is not None:
            others = {
                "the dequantised weights": others["the baseline"],
                "the original weights": runner.peer_on(runner.unquantised),
            }
        streams = []
        for one in (runner, *others.values()):
            one.model.rewind()
            with one.context():
                streams.append(stream(one.function))
            one.synchronize()
            one.model.rewind()
        self._add(
            self._notes,
            runner,
            [
                compare_streams(tokens, streams[0], name)
                for name, tokens in zip(others, streams[1:])
            ],
        )
        problem = stream_problem(streams[1], streams[0], runner.precision)
        return [problem] if problem else []

    def _verifier(self, runner: VariantRunner, accepted: Optional[Any]) -> Verifier:
        if runner.name not in self._verifiers:
            self._verifiers[runner.name] = Verifier(runner, self._seed, self._limit_bytes)
        verifier = self._verifiers[runner.name]
        if verifier.accepted is None:
            verifier.accepted = accepted
        return verifier

    def block(
        self, runner: VariantRunner, draw: int, level: str, samples: int, inner: int
    ) -> TimedCheck:
        """Prepare a block on a draw of its own."""
        changing = self._verifier(runner, None).changing()
        self._remember_baseline(runner)
        runner.model.draw_inputs(draw, level)
        check = TimedCheck(runner, changing, samples, 1 if runner.model.training else inner)
        self._blocks[runner.name] = check
        return check

    def timed(self, runner: VariantRunner, samples_ns: List[float], inner: int) -> None:
        """Record whether the work of the variant's latest block ended with its timed part."""
        check = self._blocks.get(runner.name)
        if check is not None:
            allowed_ns = max(UNFINISHED_NS, UNFINISHED_SHARE * inner * max(samples_ns))
            self._unfinished.setdefault(runner.name, []).append(check.unfinished_ns > allowed_ns)

    def verify(self, runner: VariantRunner, accepted: Optional[Any]) -> Dict[str, Any]:
        """Compare and discard the results that were kept in the variant's latest block."""
        started = _clock()
        check = self._blocks.pop(runner.name, None)
        failure: Optional[Dict[str, Any]] = None
        if check is not None and not runner.is_eager_model:
            failure = self._verifier(runner, accepted).failure(check)
            if failure is None and runner.rank_difference:
                failure = {"call": None, "text": runner.rank_difference}
        return {
            "checked": 0 if check is None else len(check.kept),
            "failure": failure,
            "seconds": (_clock() - started) / 1e9,
        }

    def _remember_baseline(self, runner: VariantRunner) -> None:
        """Store results of eager code before the first block, to detect changes by a variant."""
        model = runner.model
        if id(model) in self._baselines:
            return
        peer = self._verifiers[runner.name].peer
        model.draw_inputs(0, ALL)
        with model.without_optimizer():
            results = peer.results(self._seed)[0]["output"]
        self._baselines[id(model)] = (peer, results)

    def recheck(
        self, runner: VariantRunner, level: str, accepted: Optional[Any], values: bool, more: bool
    ) -> Dict[str, Any]:
        """Run the checks after the last block of a launch; `more` adds those of the first launch."""
        started = _clock()
        failure: Optional[Dict[str, Any]] = None
        peer = self._verifier(runner, accepted).peer
        if values and not runner.is_eager_model:
            draw = int(torch.randint(1, 2**31 - 1, (1,), generator=_generator()).item())
            once_ns = 1e9 * (runner.first_call_s or 0.0)
            check = self.block(runner, draw, level, LAST_CALLS, 1)
            check.chosen = frozenset(range(LAST_CALLS))
            with runner.context():
                call_started = _clock()
                runner.caller()()
                runner.synchronize()
                once_ns = _clock() - call_started
            runner.model.draw_inputs(draw, level)
            calls = max(2, min(LAST_CALLS, int(LAST_CALLS_NS / max(1.0, once_ns))))
            run_block(runner, 1, calls, 0, settle=False, flush_l2=False, check=check)
            check.finish()
            failure = self.verify(runner, accepted)["failure"]
            runner.model.draw_inputs(0, level)
            if more and failure is None:
                wrong = self._more(runner, peer, level)
                failure = {"call": None, "text": "; ".join(wrong)} if wrong else None
        self._check_baseline(runner, values)
        self._check_speed_of_eager_code(runner)
        self._attribute_changes(runner)
        return {
            "failure": failure,
            "notes": self._notes.get(runner.name, []),
            "untrusted": self._untrusted.get(runner.name, []),
            "seconds": (_clock() - started) / 1e9,
        }

    def _more(self, runner: VariantRunner, peer: VariantRunner, level: str) -> List[str]:
        """Check other inputs and weights than the timed ones."""
        remembers = behaviour.check_repeated_inputs(runner, peer, level)
        self._add(self._untrusted, runner, [remembers] if remembers else [])
        wrong: List[str] = []
        for check in (
            behaviour.check_scaled_inputs,
            behaviour.check_changed_weights,
            behaviour.check_other_batch,
        ):
            try:
                more, notes = check(runner, self._verifier(runner, None), self._seed)
            except behaviour.CandidateRaised as error:
                more, notes = [], ["%s failed: %s" % (check.__name__.replace("_", " "), error)]
            wrong += more
            self._add(self._notes, runner, notes)
        return wrong

    def _check_baseline(self, runner: VariantRunner, values: bool) -> None:
        baseline = self._baselines.get(id(runner.model))
        if baseline is None or not values or not runner.runs_user_code:
            return
        peer, before = baseline
        runner.model.draw_inputs(0, ALL)
        with runner.model.without_optimizer():
            now = peer.results(self._seed)[0]["output"]
        far = len(now) != len(before) or any(
            distance(one, other)[0] > WITHIN and other.is_floating_point()
            for one, other in zip(now, before)
        )
        if far:
            text = CHANGED + "the results of eager code on the same inputs"
            self._add(self._untrusted, runner, [text])

    def _check_speed_of_eager_code(self, runner: VariantRunner) -> None:
        eager_time = self._eager_times.get(id(runner.model))
        if eager_time is None or not runner.runs_user_code:
            return
        if not self._computing and computes_without_calls():
            self._computing = True
            text = CHANGED + "the load: threads or processes compute while no variant runs"
            self._add(self._untrusted, runner, [text])
            return
        slower = eager_time.slower()
        if slower:
            self._add(self._untrusted, runner, [CHANGED + slower])

    def _attribute_changes(self, runner: VariantRunner) -> None:
        """Attribute state changes since the last check to the variant that has just run."""
        unfinished = self._unfinished.get(runner.name, [])
        if sum(unfinished) > len(unfinished) / 2:
            text = "the device continues to compute after the timed part, on another stream"
            self._add(self._untrusted, runner, [text])
        if runner.replaced:
            self._add(self._untrusted, runner, [REPLACED + ", ".join(runner.replaced[:5])])
        for model, state in self._modules:
            compared = runner.runs_user_code and id(model) in self._eager_times
            changes = state.changes(attributes=compared)
            if changes:
                text = CHANGED + "the module that the variants share: " + ", ".join(changes)
                self._add(self._untrusted, runner, [text])
            state.accept()
        for text, restored in runner.state_changes.items():
            if restored:
                self._add(self._notes, runner, ["changed the %s; it was restored" % text])
            else:
                self._add(self._untrusted, runner, [CHANGED + "the %s" % text])
        if runner.runs_user_code:
            verifier = self._verifiers.get(runner.name)
            if runner.moved_random_state and verifier and not verifier.peer.moved_random_state:
                text = "changed the state of the random number generators; it was restored"
                self._add(self._notes, runner, [text])
            if threading.active_count() > self._threads:
                more = threading.active_count() - self._threads
                self._add(self._notes, runner, ["left %d threads running" % more])
                self._threads = threading.active_count()

    def note(self, runner: VariantRunner, text: str) -> None:
        """Add a note about a variant."""
        self._add(self._notes, runner, [text])

    def _add(self, where: Dict[str, List[str]], runner: VariantRunner, texts: List[str]) -> None:
        present = where.setdefault(runner.name, [])
        present += [text for text in texts if text not in present]


def _has_finite_values(results: Any) -> bool:
    """Whether there is a number to compare: not everything is empty, infinite or NaN.

    A text or a single integer, such as a status, says too little about what was computed.
    """
    return any(
        tensor.numel() > (group == GROUP and not tensor.is_floating_point())
        and (group != GROUP or tensor.dtype is not torch.uint8)
        and (not tensor.is_floating_point() or bool(torch.isfinite(tensor).any()))
        for group, tensors in results.items()
        for tensor in tensors
    )


def modules_of(model: Model, kinds: Iterable[type]) -> List[str]:
    """Return the names of the Python modules outside torch that define the model."""
    names = {str(kind.__module__) for kind in kinds}
    names.add(str(getattr(getattr(model.module, "function", None), "__module__", "")))
    return sorted(
        name
        for name in names
        if name in sys.modules and name.partition(".")[0] not in ("torch", "torchyard", "builtins")
    )


def _generator() -> Any:
    generator = torch.Generator()
    generator.seed()
    return generator


RIGHT = ("pass", "less-accurate")


def describe_changed_weights(
    runner: VariantRunner, seed: int, baseline: Dict[str, Any], record: Dict[str, Any]
) -> Dict[str, Any]:
    """Return the record with the difference from the baseline; `record` compares with the dequantised weights."""
    weights = runner.weights or str(baseline.get("weights", ""))
    text = "weights=%s changes results by design" % weights
    raw = runner.results(seed, baseline["baseline"])[0]
    place = place_for(raw)
    results = to_plain({"output": raw["output"]}, place)
    expected = to_plain({"output": baseline["baseline"]["output"]}, place)
    if shapes_of(results) != shapes_of(expected):
        return dict(
            record, status="fail", detail="its results have other shapes than the baseline's"
        )
    largest = largest_difference(results, expected, runner.hardware.comparison_place)
    relative = relative_distance(results, expected)
    text += ": relative difference from the baseline %.2g" % relative
    method = record.get("method", "none").replace("reference", "reference with the same weights")
    changed = dict(record, method=method)
    if record["status"] not in RIGHT:
        return dict(changed, detail=_joined(str(record.get("detail", "")), text))
    agreement = (
        "it agrees with its dequantised weights up to rounding"
        if record["status"] == "pass"
        else "compared with its dequantised weights: " + str(record["detail"])
    )
    return dict(
        changed,
        status="less-accurate",
        detail=_joined(text, agreement),
        max_error=largest if math.isfinite(largest) else None,
    )


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
