"""False alarms and verdicts of sweeps measured cell by cell and in passes, simulated.

Every launch of a cell has the effect of the cell, an own deviation and a slow deviation of the
machine, which all launches near that time share. The analyses are those of a real sweep.

    python benchmarks/simulate_passes.py --sweeps 30
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field

import numpy as np

from torchyard.core.comparison import Verdict
from torchyard.core.study import Budget
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.stopping import InterimAnalysis
from torchyard.sweep.cell_gate import CellReport, OpenComparison
from torchyard.sweep.launch_order import LaunchOrder

CELLS = 40
LAUNCH_S = 6.0
SLOW_S = 120.0
LAUNCH_SD = 0.015
PAIR_SD = 0.02
PAIRS = 10
BUDGET = Budget(time_s=60.0)
CLAIMS = {Verdict.FASTER, Verdict.SLOWER}


@dataclass
class Machine:
    """The slow deviation of one cell pair over time: a stationary process of first order."""

    rng: np.random.Generator
    share: float
    now_s: float = 0.0
    value: float = 0.0

    def at(self, time_s: float) -> float:
        """Return the deviation at a later time."""
        keep = math.exp(-(time_s - self.now_s) / SLOW_S) if self.now_s else 0.0
        sd = LAUNCH_SD * math.sqrt(self.share)
        self.value = keep * self.value + math.sqrt(1.0 - keep**2) * self.rng.normal(0.0, sd)
        self.now_s = time_s
        return self.value


@dataclass
class SimulatedCell:
    """One cell: its launches and analyses so far."""

    rng: np.random.Generator
    share: float
    effect: float
    machine: Machine = field(init=False)
    launches: list[list[float]] = field(default_factory=list)
    looks: list[InterimAnalysis] = field(default_factory=list)
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        self.machine = Machine(self.rng, self.share)

    def launch(self, time_s: float) -> None:
        """Measure one launch and analyze."""
        own = self.rng.normal(0.0, LAUNCH_SD * math.sqrt(1.0 - self.share))
        center = self.effect + own + self.machine.at(time_s)
        self.launches.append(list(center + self.rng.normal(0.0, PAIR_SD, PAIRS)))
        used = len(self.launches) * LAUNCH_S / BUDGET.time_s
        if len(self.launches) >= BUDGET.min_launches:
            self.analyze(min(1.0, used))

    def analyze(self, fraction: float) -> None:
        """Run an analysis; the final one replaces an interim one of the same launches."""
        if self.looks and self.looks[-1].launches == len(self.launches):
            self.looks.pop()
        self.looks.append(InterimAnalysis(launches=len(self.launches), fraction=fraction))
        result = estimate(self.launches, looks=self.looks, budget=BUDGET)
        if fraction >= 1.0 or decided(result, BUDGET):
            self.verdict = result.verdict

    def report(self) -> CellReport:
        """Return what the driver sees."""
        means = [float(np.median(pairs)) for pairs in self.launches]
        sd = float(np.std(means, ddof=1)) if len(means) > 1 else None
        one = OpenComparison(log_speedup=float(np.mean(means)), launch_sd=sd)
        return CellReport(launches=len(means), undecided=(one,))


def cell_by_cell(cells: list[SimulatedCell], total_s: float) -> None:
    """Measure each cell to its end before the next."""
    time_s = 0.0
    for cell in cells:
        while cell.verdict is None and time_s < total_s:
            time_s += LAUNCH_S
            cell.launch(time_s)


def in_passes(cells: list[SimulatedCell], total_s: float, seed: int) -> None:
    """Measure in the order of a real sweep."""
    names = {f"{number:03d}": cell for number, cell in enumerate(cells)}
    order = LaunchOrder(dict.fromkeys(names, BUDGET), seed=seed)
    fresh, time_s = set(names), 0.0
    while time_s < total_s:
        name = order.next_fresh(fresh)
        if name is None:
            waiting = {key: one.report() for key, one in names.items() if one.verdict is None}
            name = order.next_waiting(waiting)
        if name is None:
            return
        fresh.discard(name)
        time_s += LAUNCH_S
        names[name].launch(time_s)
        order.record(name, LAUNCH_S)


def simulate(share: float, effect: float, minutes: float, sweeps: int) -> list[str]:
    """Return the table row of one world: claims or verdicts in both orders, in percent."""
    texts = []
    for passes in (False, True):
        claims = verdicts = total = unmeasured = 0
        for seed in range(sweeps):
            rng = np.random.default_rng((seed, round(1000 * share), round(1000 * effect)))
            cells = [SimulatedCell(rng, share, effect) for _ in range(CELLS)]
            if passes:
                in_passes(cells, 60.0 * minutes, seed)
            else:
                cell_by_cell(cells, 60.0 * minutes)
            for cell in cells:
                if cell.verdict is None and cell.launches:
                    cell.analyze(1.0)
                total += 1
                unmeasured += not cell.launches
                claims += cell.verdict in CLAIMS
                verdicts += cell.verdict in (*CLAIMS, Verdict.SAME)
        texts.append(
            f"claims {100 * claims / total:5.1f} %  verdicts {100 * verdicts / total:5.1f} %  "
            f"without a launch {100 * unmeasured / total:4.1f} %"
        )
    return texts


def main() -> None:
    """Print both orders for several worlds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=10)
    sweeps = parser.parse_args().sweeps
    for minutes in (1000.0, 12.0):
        for effect in (0.0, 0.05):
            for share in (0.0, 0.1, 0.3):
                row, turns = simulate(share, effect, minutes, sweeps)
                print(f"{minutes:g} min, effect {effect:g}, slow share {share:g}")
                print(f"  cell by cell: {row}")
                print(f"  in passes:    {turns}", flush=True)


if __name__ == "__main__":
    main()
