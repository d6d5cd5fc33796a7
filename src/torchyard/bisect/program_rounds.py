"""Measure rounds of revisions: prepare the place of each, warm up, and run the program there."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from torchyard.bench.program_session import RunWatch, block_of_run, command_of, failure_of_run
from torchyard.bisect.failures import FAILED, PASSED
from torchyard.bisect.model import Request, Revision, RevisionFailed, Round, SearchFolder
from torchyard.bisect.places import Invocation, Places
from torchyard.core.block import Block
from torchyard.files.safe_reading import read_tail
from torchyard.process.programs import ProgramRun, ProgramStarter

_TAIL_BYTES: Final = 65536
_ERROR_BYTES: Final = 400
_SKIP: Final = 125
"""Exit code of a program that cannot be tested, as in `git bisect run`."""
_PRINTED: Final = re.compile(rb"^torchyard: *([0-9.]+(?:[eE][+-]?[0-9]+)?) *\r?$", re.MULTILINE)


class ProgramRounds:
    """Runs the command of a request; a context manager, at whose end no program runs."""

    def __init__(
        self, request: Request, places: Places, folder: SearchFolder, *, limit_s: float
    ) -> None:
        """`limit_s` is the time limit of one run and of one setup."""
        self._argv = command_of(request.command, by_shell=False) if request.command else []
        self._setup = command_of(request.setup, by_shell=False) if request.setup else []
        self._metric = request.metric
        self._places = places
        self._folder = folder
        self._limit_s = limit_s
        self._invocations: dict[str, Invocation] = {}
        self._watch = RunWatch()
        self._chance = random.Random()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.callback(self._watch.guards.close)
        self._starter = self._open.enter_context(ProgramStarter())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def measure(self, revisions: Sequence[Revision], number: int) -> Round:
        """Run each revision once, in random order; those that are not ready are prepared before."""
        for revision in revisions:
            if revision.commit not in self._invocations:
                self._prepare(revision.commit)
        order = list(revisions)
        self._chance.shuffle(order)
        started_s = time.monotonic()
        blocks = tuple(self._block(one.commit, number, place) for place, one in enumerate(order))
        return Round(blocks=blocks, took_s=time.monotonic() - started_s)

    def _block(self, commit: str, number: int, position: int) -> Block:
        self._watch.begin()
        run = self._start(self._argv, commit, "timing", self._invocations[commit])
        block = block_of_run(run, self._watch.end(), number, position, commit)
        if self._metric == "time":
            return block
        if self._metric == "printed":
            return replace(block, samples_ns=(self._printed_s(commit) * 1e9,))
        # Other programs change times, but neither memory nor exit codes.
        value = float(run.peak_memory_bytes)
        if self._metric == "failure":
            value = FAILED if run.failed else PASSED
        return replace(block, samples_ns=(value,), dirty=())

    def _place(self, commit: str) -> Invocation:
        """Make the place of a revision, and run its setup."""

        def setup(invocation: Invocation) -> None:
            if self._setup:
                self._start(self._setup, commit, "setup", invocation)

        return self._places.prepare(commit, setup)

    def _prepare(self, commit: str) -> None:
        """Make the place of a revision and, for times, run the program once as warm-up."""
        invocation = self._place(commit)
        if self._metric in {"time", "printed"}:
            self._start(self._argv, commit, "timing", invocation)
        self._invocations[commit] = invocation

    def _start(
        self, argv: Sequence[str], commit: str, phase: str, invocation: Invocation
    ) -> ProgramRun:
        log = self._folder.log(commit, f"{phase}.stderr")
        run = self._starter.run(
            invocation.words(argv),
            stderr=log,
            stdout=self._output(commit) if self._metric == "printed" else None,
            folder=invocation.folder,
            limit_s=self._limit_s,
            variables=invocation.variables,
        )
        counts = self._metric == "failure" and phase == "timing"
        if run.failed and not (counts and not run.error and run.exit_code != _SKIP):
            failure = failure_of_run(run, commit, phase, log, self._limit_s)
            what = "--setup" if phase == "setup" else "--command"
            tail = failure.log_tail.strip()[-_ERROR_BYTES:]
            raise RevisionFailed(commit, f"{what}: {failure.message}" + (f"\n{tail}" * bool(tail)))
        return run

    def _output(self, commit: str) -> Path:
        return self._folder.log(commit, "stdout")

    def _printed_s(self, commit: str) -> float:
        """Return the last time that the program printed."""
        matches = _PRINTED.findall(read_tail(self._output(commit), _TAIL_BYTES))
        try:
            seconds = float(matches[-1])
        except (IndexError, ValueError):
            seconds = math.nan
        if not 0.0 < seconds < math.inf:
            raise RevisionFailed(commit, "--metric printed: no line `torchyard: SECONDS`")
        return seconds
