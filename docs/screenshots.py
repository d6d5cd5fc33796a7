# ruff: noqa: INP001  # a script beside the pages, not a package
"""Take screenshots of the pages from real runs: report, sweep, dashboard, history and values.

python docs/screenshots.py OUTDIR                  measure (about ten minutes), then take the pictures
python docs/screenshots.py OUTDIR --runs FOLDER    keep the runs there, and use those that exist
python docs/screenshots.py OUTDIR --whole          the whole page instead of the first screen
python docs/screenshots.py OUTDIR --docs           also replace the pictures of the documentation

Each page is shown at 1400 and 390 pixels, light and dark. Needs Chromium and Playwright, as the tests
of pages do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
WIDTHS: Final = {1400: 1000, 390: 844}
"""Width and height of the windows."""
_UNTRUSTED: Final = 6
"""Exit code of a run whose machine was too noisy; its pages show that."""
_REVISIONS: Final = ("1.0", "1.1")
_SMALL: Final = "kernels/layer-norm"
_ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_IN_DOCS: Final = (("values-flow", "values", "#graph"),)
"""Pictures of the documentation: name, page and the part of it that is shown."""


def torchyard(runs: Path, *words: str) -> None:
    """Run a command whose results directory is in the folder of the runs."""
    command = [sys.executable, "-m", "torchyard", *words]
    environment = {**os.environ, "TORCHYARD_HOME": str(runs / "dashboard")}
    code = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
    if code not in (0, _UNTRUSTED):
        raise SystemExit(f"torchyard {' '.join(words)} failed with exit code {code}")


def measure(runs: Path) -> None:
    """Make the runs that do not exist in the folder yet."""
    runs.mkdir(parents=True, exist_ok=True)
    if not (runs / "bench").exists():
        torchyard(runs, "bench", "examples/demo.toml", "--run-dir", str(runs / "bench"))
    if not (runs / "sweep").exists():
        suites = (
            "--workload",
            _SMALL,
            "--workload",
            "models/transformer-encoder",
            "--workload",
            "models/lstm",
        )
        backends = ("--backends", "inductor,aot_eager", "--modes", "inference,training")
        limits = ("--time", "6s", "--precision-goal", "5%", "--margin", "5%")
        torchyard(runs, "sweep", *suites, *backends, *limits, "--run-dir", str(runs / "sweep"))
    measured = len(list((runs / "dashboard" / "runs").glob("*/run.json")))
    for revision in _REVISIONS[max(0, measured - 1) :]:  # the sweep is a run of its own
        limits = ("--time", "5s", "--precision-goal", "5%", "--margin", "5%")
        torchyard(runs, "bench", "examples/demo.toml", *limits, "--revision", revision)
    if not (runs / "values").exists():
        script = "examples/values/bert_training.py"
        torchyard(runs, "values", "--run-dir", str(runs / "values"), script)


def write_pages(runs: Path, pages: Path) -> Iterator[tuple[str, Path]]:
    """Write the pages and yield the name and the file of each."""
    report = pages / "report.html"
    to_file = ("--format", "html", "--output")
    torchyard(runs, "report", str(runs / "bench"), *to_file, str(report))
    yield "report", report
    sweep = pages / "sweep.html"
    torchyard(runs, "sweep", "report", str(runs / "sweep"), *to_file, str(sweep))
    yield "sweep", sweep
    site = pages / "site"
    torchyard(runs, "site", str(site))
    yield "dashboard", site / "index.html"
    yield "workloads", site / "workloads.html"
    yield "history", min((site / "history").glob("*.html"))
    values = pages / "values.html"
    torchyard(runs, "values", "show", str(runs / "values"), *to_file, str(values))
    yield "values", values


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def take(pages: dict[str, Path], outdir: Path, *, whole: bool) -> None:
    """Write one PNG file per page, width and theme."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium(), args=_ARGUMENTS)
        for width, height in WIDTHS.items():
            for dark in (False, True):
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme="dark" if dark else "light",
                    reduced_motion="reduce",
                )
                page = context.new_page()
                for name, path in pages.items():
                    page.goto(path.resolve().as_uri())
                    page.wait_for_timeout(1500)
                    theme = "dark" if dark else "light"
                    picture = outdir / f"{name}-{width}-{theme}.png"
                    page.screenshot(path=picture, full_page=whole)
                    wider = page.evaluate(
                        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                    )
                    if wider > 0:
                        sys.stderr.write(
                            f"{picture.name}: the page is {wider} px wider than the window\n"
                        )
                context.close()
        browser.close()


def take_for_docs(pages: dict[str, Path]) -> None:
    """Replace the pictures in docs/images that show these pages."""
    from playwright.sync_api import sync_playwright

    images = REPOSITORY / "docs" / "images"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium(), args=_ARGUMENTS)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        for name, page_name, selector in _IN_DOCS:
            page.goto(pages[page_name].resolve().as_uri())
            page.wait_for_timeout(1500)
            page.locator(selector).first.screenshot(path=images / f"{name}.png")
        browser.close()


def main() -> None:
    """Measure, write the pages and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outdir", type=Path, help="folder for the screenshots")
    parser.add_argument("--runs", type=Path, help="folder for the runs [default: a temporary one]")
    parser.add_argument("--whole", action="store_true", help="show whole pages")
    parser.add_argument("--docs", action="store_true", help="replace the pictures in docs/images")
    options = parser.parse_args()
    options.outdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = (options.runs or Path(folder) / "runs").absolute()
        measure(runs)
        pages = Path(folder) / "pages"
        pages.mkdir()
        written = dict(write_pages(runs, pages))
        take(written, options.outdir, whole=options.whole)
        if options.docs:
            take_for_docs(written)


if __name__ == "__main__":
    main()
