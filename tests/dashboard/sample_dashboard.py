"""Results directories with runs from the real writer, and a dashboard client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.testclient import TestClient

from torchyard.core.comparison import Comparison, Estimate, Interval, VariantMetrics, Verdict
from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.dashboard.app import Access, make_app
from torchyard.dashboard.feeds import Feeds
from torchyard.dashboard.live_store import LiveStore
from torchyard.results.run_writer import RunWriter

MACHINE: dict[str, object] = {"cpu": "Example 9000", "cores": 2, "architecture": "x86_64"}
MATMUL = Workload(suite="kernels", name="matmul", parameters=(("size", 256),))
GPT = Workload(suite="models", name="gpt")


@dataclass(frozen=True, kw_only=True)
class Names:
    """Everything in a run that somebody can name."""

    study: str = "eager against inductor"
    baseline: str = "eager"
    candidate: str = "inductor"
    workload: str = "matmul"
    revision: str = ""
    note: str = ""
    log: str = ""


def comparison(
    workload: Workload, verdict: Verdict, speedup: float, names: Names | None = None
) -> Comparison:
    """One row with a plausible estimate."""
    names = names or Names()
    return Comparison(
        workload=workload,
        baseline=names.baseline,
        candidate=names.candidate,
        verdict=verdict,
        estimate=Estimate(
            verdict=verdict,
            speedup=speedup,
            interval=Interval(low=speedup * 0.99, high=speedup * 1.01),
            p_value=0.001,
            launches=5,
            pairs=50,
            pairs_dropped=0,
            launch_sd=0.01,
            pair_sd=0.01,
            minimum_detectable=0.02,
            time_needed_s=None,
        ),
        baseline_metrics=VariantMetrics(time_ns=1.0e6, torch_version="2.9.0"),
        candidate_metrics=VariantMetrics(
            time_ns=1.0e6 / speedup, compile_cold_s=12.5, peak_memory_bytes=1 << 28
        ),
        notes=(names.note,) if names.note else (),
    )


def write_run(
    folder: Path,
    *,
    rows: Sequence[Comparison] = (),
    names: Names | None = None,
    started: str = "2025-01-02T03:04:05.678Z",
    state: str = "finished",
) -> Path:
    """A run in that folder; `running` belongs to this process."""
    names = names or Names()
    here = Target(name="here", python="/opt/torch/bin/python")
    study = Study(
        name=names.study,
        baseline=Variant(name=names.baseline, target=here),
        candidates=(Variant(name=names.candidate, target=here, backend="inductor"),),
        workloads=tuple(dict.fromkeys(row.workload for row in rows)) or (MATMUL,),
    )
    writer = RunWriter.create(folder, study=study, command=["torchyard"], machine=MACHINE)
    writer.add_target("here", {"torch": "2.9.0"})
    for row in rows:
        writer.add_comparison(row)
    if state != "running":
        writer.finish(state)
    path = folder / "run.json"
    facts = json.loads(path.read_text())
    facts.update(started=started, revision=names.revision)
    facts["notes"] = [names.note] if names.note else []
    path.write_text(json.dumps(facts))
    return folder


def write_results_directory(home: Path, *, count: int = 3) -> list[str]:
    """A few runs of one study; their ids, oldest first."""
    ids = []
    for number in range(count):
        run = f"202501{number + 1:02d}T000000.000Z-{number:04x}"
        verdict = Verdict.SLOWER if number == 1 else Verdict.FASTER
        write_run(
            home / run,
            rows=[
                comparison(MATMUL, verdict, 0.9 if number == 1 else 1.25 + number / 100),
                comparison(GPT, Verdict.SAME, 1.001),
            ],
            names=Names(revision=f"{number:040x}", note=f"note {number}"),
            started=f"2025-01-{number + 1:02d}T00:00:00.000Z",
        )
        ids.append(run)
    return ids


@dataclass(frozen=True, kw_only=True)
class DashboardClient:
    """A client and what stands behind it."""

    client: TestClient
    live_store: LiveStore
    feeds: Feeds

    def page(self, address: str, status: int = 200) -> str:
        """The text of a page."""
        answer = self.client.get(address)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("text/html")
        return answer.text

    def data(self, address: str, status: int = 200) -> dict[str, object]:
        """The JSON of an address."""
        answer = self.client.get(address)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        response = answer.json()
        assert isinstance(response, dict)
        return response


@contextmanager
def open_client(
    home: Path, *, access: Access | None = None, address: str = "http://127.0.0.1:8000"
) -> Iterator[DashboardClient]:
    """The dashboard over a home, without a socket."""
    live_store, feeds = LiveStore(home), Feeds()
    app = make_app(live_store, access=access or Access(), feeds=feeds)
    with TestClient(app, base_url=address, raise_server_exceptions=False) as client:
        client.follow_redirects = False
        yield DashboardClient(client=client, live_store=live_store, feeds=feeds)
    live_store.close()
