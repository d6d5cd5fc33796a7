"""Every page against its golden file. UPDATE_GOLDEN=1 rewrites them; check the difference."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.dashboard.sample_dashboard import MATMUL, open_client, write_results_directory, write_run
from tests.presentation.page_outline import page_outline
from torchyard import __version__

GOLDEN = Path(__file__).parent / "golden"
PAGES = {
    "runs": "/",
    "runs-filtered": "/?study=eager&verdict=slower&sort=torch&order=rising",
    "workloads": "/workloads",
    "history": "/history",
    "compare": "/compare?before=20250101T000000.000Z-0000&after=20250102T000000.000Z-0001",
    "live": "/live",
    "not-found": "/run?id=nobody",
    "damaged": "/run?id=damaged",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "runs"
    write_results_directory(home)
    write_run(home / "going", state="running")
    for path in home.glob("*/run.json"):
        facts = json.loads(path.read_text())
        facts["owner"] = {"host": "yard.example", "pid": 1}
        path.write_text(json.dumps(facts))
    (home / "damaged").mkdir()
    (home / "damaged" / "run.json").write_text("no json")
    return home


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_was(home: Path, name: str) -> None:
    with open_client(home) as dashboard:
        address = PAGES[name]
        if name == "history":
            runs = dashboard.data("/api/runs?machine=example")["runs"]
            assert isinstance(runs, list)
            series = {"workload": MATMUL.label, "baseline": "eager", "candidate": "inductor"}
            address = f"/history?{urlencode({**series, 'machine': runs[0]['machine']})}"
        text = dashboard.client.get(address).text
    text = text.replace(f"Torchyard {__version__}", "Torchyard VERSION")
    text = text.replace(str(home), "HOME")
    text = page_outline(text)
    golden = GOLDEN / f"{name}.html.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 accepts it"
