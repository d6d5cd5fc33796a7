"""What a finding is worth is measured later, alone; here is written down what to measure.

The wasted part (a fill, a sum with zeros, the operator itself, or a share of it) and the operator
that it belongs to become recipes of the finding, the first time it is seen. Measures nothing.
"""

from typing import Any, List, Tuple

from torchyard.worker.values.call_graph import INSIDE as INSIDE_CALL
from torchyard.worker.values.call_graph import PASSES, SHRINKS, WASTED, CallGraph
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.patterns.duplicate import OWN_INPUT, Duplicate
from torchyard.worker.values.places import Place
from torchyard.worker.values.recipes import NoRecipe, Recipe, fill_recipe, recipe_of
from torchyard.worker.values.storages import storage_key
from torchyard.worker.values.strategies import DEAD, GUARD, is_sum

PARTLY = frozenset(
    {"frequent values", "heavy type", "structured", "approximate", "sparse gradient"}
)
"""Patterns where not the operator but some of its bytes are too many: its time counts by bytes."""

FILL_FIRST = "fill first"
"""The fill and the operator that overwrites it, against that operator alone."""
INSIDE = "inside"
"""Work inside an operator: the operator into memory of its own choice, or with the work once more."""
NOTHING_LEFT = "the operator goes away as a whole, so there is nothing to compare it with"


class WorthNotes:
    """Writes into findings what to measure: a recipe, and the calls that a fix concerns."""

    def __init__(self) -> None:
        self._waiting: List[Tuple[Finding, Observation]] = []
        self.graph = CallGraph()

    def found(self, finding: Finding, seen: Observation) -> None:
        """Note a sighting; memory is looked at only where the watch is off."""
        running = seen.arguments is not None
        if seen.path:
            self.graph.mark(finding, None if running else seen.state, INSIDE_CALL)
        elif finding.pattern in PARTLY:
            self.graph.mark(finding, None if running else seen.state, SHRINKS)
        else:
            role = PASSES if _passes(finding, seen) else WASTED
            self.graph.mark(finding, None if running else seen.state, role)
            if is_sum(finding) and not running:
                self.graph.also(finding, role=PASSES)  # the sum goes away with the zeros
        if not finding.recipe:
            self._write_down(finding, seen)

    def followed(self, finding: Finding, seen: Observation) -> None:
        """Note a call that is wasted because of an earlier one."""
        self.graph.also(finding, None if seen.arguments is not None else seen.state)

    def _write_down(self, finding: Finding, seen: Observation) -> None:
        finding.recipe = {"wasted": [], "share": 1.0, "operator": None, "mending": ""}
        try:
            finding.recipe["wasted"] = _wasted(finding, seen)
        except Exception as error:  # nothing of this may reach the program
            finding.recipe["unavailable"] = str(error)[:160]
            return
        if finding.pattern in PARTLY:
            finding.recipe["share"] = finding.bytes_wasted / max(1, finding.bytes_written)
        self._waiting.append((finding, seen))

    def after_operator(self, func: Any, args: Any, kwargs: Any, result: Any, place: Place) -> None:
        """Add a call, and write down the operator that findings were made in."""
        try:
            self.graph.after_operator(func, args, kwargs, result, place)
        except Exception as error:  # nothing of this may reach the program
            self.graph.give_up("%s: %s" % (type(error).__name__, error))
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        recipe: Recipe = {}
        for finding, seen in waiting:
            if is_sum(finding):
                continue
            inside = bool(seen.path) and seen.path[0] == operator_of(func).name
            overwrites = (
                finding.pattern == DEAD and not seen.path and _writes(seen, func, args, kwargs)
            )
            if not inside and not overwrites:
                continue
            try:
                recipe = recipe or recipe_of(func, args, kwargs)
            except Exception as error:
                finding.recipe["unavailable"] = str(error)[:160]
                continue
            finding.recipe["operator"] = recipe
            finding.recipe["mending"] = INSIDE if inside else FILL_FIRST


def _passes(finding: Finding, seen: Observation) -> bool:
    """Whether readers get an input of the operator instead of its result."""
    if finding.pattern == GUARD:
        return seen.fresh
    return finding.pattern == Duplicate.name and (
        finding.detail == OWN_INPUT or seen.operator.copies
    )


def _wasted(finding: Finding, seen: Observation) -> List[Recipe]:
    device = seen.device
    fill = fill_recipe(seen.shape, seen.dtype, device)
    if is_sum(finding):
        add = dict(fill, operator="aten::add_", overload="Tensor", args=fill["args"] * 2)
        return [fill, add]
    if finding.pattern == DEAD:
        return [fill]
    if seen.arguments is not None:
        return [recipe_of(seen.func, seen.arguments, seen.keywords)]
    if seen.operator.copies or finding.pattern in PARTLY:
        # Of what is too wide or too sparse, memory is the cost: a copy reads and writes it once.
        return [dict(fill, operator="aten::clone")]
    if seen.operator.fills:
        return [fill]
    raise NoRecipe("its arguments were gone when it turned out to be waste")


def _writes(fill: Observation, func: Any, args: Any, kwargs: Any) -> bool:
    written = written_tensors(operator_of(func), args, kwargs)
    return any(storage_key(tensor) == fill.state.key for tensor in written)
