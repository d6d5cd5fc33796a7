"""One launch in this process: reference, accuracy check, blocks with checks, and final checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.worker.in_process_service import make_service, variant

CORPUS = Path(__file__).parent / "candidate_corpus"


@dataclass
class Launch:
    """What the checks found."""

    status: str
    failure: str = ""
    notes: list[str] = field(default_factory=list)
    untrusted: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """The strongest that was found."""
        if self.failure:
            return "wrong"
        if self.untrusted:
            return "untrusted"
        if self.status not in {"pass", "less-accurate"}:
            return "unchecked"
        return "note" if self.notes else "pass"


def launch(
    workload: str,
    backend: str,
    *,
    mode: str = "inference",
    step: bool = False,
    precision: str = "float32",
    rounds: int = 3,
    inner: int = 2,
    samples: int = 10,
    more: bool = True,
) -> Launch:
    """Drive a worker service as a session does, without the statistics."""
    code = workload if "/" in workload else f"{CORPUS / 'behavior_workloads.py'}:{workload}"
    variants = [variant("base", precision=precision), variant("mine", backend, precision)]
    service = make_service(code, *variants, mode=mode, step=step)
    reference = service.reference("base", "", keep=True)
    judged = service.judge("mine", "", last=True)
    found = Launch(judged["status"], notes=judged["notes"], untrusted=judged["untrusted"])
    if judged["status"] == "fail":
        found.failure = "before timing: " + judged["detail"]
        return found
    comparable = judged["comparable"]
    varied = reference["varied"]
    for number in range(rounds):
        for name in ("base", "mine"):
            service.block(
                name,
                inner=inner,
                samples=samples,
                prime=1,
                settle=False,
                flush_l2=False,
                draw=1000 + number,
                varied=varied,
            )
        if comparable and not found.failure:
            failure = service.verify("mine", judged["accepted"])["failure"]
            if failure is not None:
                found.failure = f"block {number}, call {failure['call']}: {failure['text']}"
    last = service.recheck("mine", varied, judged["accepted"], values=comparable, more=more)
    found.notes, found.untrusted = last["notes"], last["untrusted"]
    if last["failure"] is not None and not found.failure:
        found.failure = "after the last block: " + last["failure"]["text"]
    return found
