"""The static site: complete, linked, and rewritten only where something changed."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.dashboard.sample_dashboard import (
    GPT,
    MATMUL,
    Names,
    comparison,
    write_results_directory,
    write_run,
)
from torchyard.core.comparison import Verdict
from torchyard.core.study import Workload
from torchyard.dashboard.links import SiteLinks, file_stem
from torchyard.dashboard.live_store import LiveStore
from torchyard.dashboard.site import MARKER, SiteFolder, write_site
from torchyard.errors import UsageError


def write(home: Path, folder: Path) -> SiteFolder:
    live_store = LiveStore(home)
    try:
        return write_site(live_store, folder)
    finally:
        live_store.close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_results_directory(tmp_path / "runs")
    return tmp_path / "runs"


def test_every_page_is_there_and_every_link_leads_to_a_file(home: Path, tmp_path: Path) -> None:
    write_run(home / "a b&c?d#e%41", rows=[comparison(GPT, Verdict.WRONG, 1.5)])
    (home / "broken").mkdir()
    (home / "broken" / "run.json").write_text("no json")
    written = write(home, tmp_path / "site")
    pages = {name: text for name, text in files_of(written.folder).items() if ".html" in name}
    assert {"index.html", "workloads.html", "compare.html"} <= set(pages)
    assert sum(name.startswith("runs/") for name in pages) == 5
    assert sum(name.startswith("compare/") for name in pages) == 3
    for name, data in pages.items():
        text = data.decode()
        for address in re.findall(r'(?:href|src|data-address)="([^"#]+)"', text):
            link = html.unescape(address)
            if link.startswith("data:"):
                continue
            assert "?" not in link
            assert not re.match(r"[a-z]+:|/", link), f"{name}: {link}"
            goal = (written.folder / name).parent / unquote(link)
            assert goal.is_file(), f"{name}: {link}"


def test_pages_allow_themselves_nothing_but_files_beside_them(home: Path, tmp_path: Path) -> None:
    written = write(home, tmp_path / "site")
    for name, data in files_of(written.folder).items():
        if not name.endswith(".html"):
            continue
        (policy,) = re.findall(rb'Content-Security-Policy" content="([^"]+)"', data)
        text = html.unescape(policy.decode())
        assert text.startswith("default-src 'none'")
        assert "unsafe" not in text
        assert "connect-src" not in text


def test_nothing_that_needs_a_server(home: Path, tmp_path: Path) -> None:
    written = write(home, tmp_path / "site")
    index = (written.folder / "index.html").read_text()
    assert "live" not in re.findall(r'href="([^"]+)"', index)
    assert "method=" not in index
    assert 'data-filter="runs"' in index
    assert "api/" not in index
    assert "torchyard serve" in (written.folder / "compare.html").read_text()


def test_written_again_it_is_the_same_and_nothing_is_touched(home: Path, tmp_path: Path) -> None:
    first = write(home, tmp_path / "site")
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*.html")}
    content = files_of(first.folder)
    second = write(home, tmp_path / "site")
    assert (second.written, second.removed) == (0, 0)
    assert second.unchanged == first.written
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*.html")} == before
    assert files_of(first.folder) == content


def test_only_what_changed_is_written_and_what_is_gone_is_removed(
    home: Path, tmp_path: Path
) -> None:
    folder = write(home, tmp_path / "site").folder
    ids = sorted(path.name for path in home.iterdir() if path.is_dir())
    kept = {run: (folder / SiteLinks().run(run)) for run in ids}
    untouched = kept[ids[0]].stat().st_mtime_ns
    # WHEN one run is removed, one is added and one gets a note
    for path in (home / ids[1]).rglob("*"):
        if path.is_file():
            path.unlink()
    write_run(home / "new", rows=[comparison(MATMUL, Verdict.FASTER, 2.0)], names=Names())
    facts = json.loads((home / ids[2] / "run.json").read_text())
    facts["notes"] = ["seen on a Friday"]
    (home / ids[2] / "run.json").write_text(json.dumps(facts))
    written = write(home, folder)
    # THEN
    assert written.removed >= 2
    assert not kept[ids[1]].exists()
    assert kept[ids[0]].stat().st_mtime_ns == untouched
    assert "seen on a Friday" in (folder / "index.html").read_text()
    assert (folder / SiteLinks().run("new")).is_file()


def test_a_removed_page_is_written_again(home: Path, tmp_path: Path) -> None:
    folder = write(home, tmp_path / "site").folder
    page = next((folder / "runs").iterdir())
    page.unlink()
    assert write(home, folder).written == 1
    assert page.is_file()


def test_files_of_others_are_kept(home: Path, tmp_path: Path) -> None:
    folder = write(home, tmp_path / "site").folder
    (folder / "CNAME").write_text("bench.example")
    (folder / "runs" / "mine.txt").write_text("mine")
    write(home, folder)
    assert (folder / "CNAME").read_text() == "bench.example"
    assert (folder / "runs" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("content", [None, b"", b"no json", b"[]", b'{"format": 99, "files": {}}'])
def test_a_folder_with_other_files_is_left_alone(
    home: Path, tmp_path: Path, content: bytes | None
) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "index.html").write_text("precious")
    if content is not None:
        (folder / MARKER).write_bytes(content)
    before = files_of(folder)
    with pytest.raises(UsageError, match="is not a site of Torchyard") as raised:
        write(home, folder)
    assert "new or empty folder" in raised.value.hint
    assert files_of(folder) == before


def test_a_file_is_no_folder(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is not a site of Torchyard"):
        write(home, tmp_path / "file")


@pytest.mark.parametrize("name", ["../precious", "/etc/x", "runs/../../precious", "..", ""])
def test_a_marker_cannot_make_it_remove_files_elsewhere(
    home: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "precious").write_text("precious")
    folder = write(home, tmp_path / "site").folder
    facts = json.loads((folder / MARKER).read_text())
    facts["files"][name] = ""
    (folder / MARKER).write_text(json.dumps(facts))
    write(home, folder)
    assert (tmp_path / "precious").read_text() == "precious"


def test_an_interrupted_export_is_resumed(home: Path, tmp_path: Path) -> None:
    live_store = LiveStore(home)

    def stop(done: int, total: int) -> None:
        if done == total - 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_site(live_store, tmp_path / "site", progress=stop)
    assert not (tmp_path / "site" / "index.html").exists()
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "site" / "runs").iterdir()}
    assert len(runs) == 3
    write_site(live_store, tmp_path / "site")
    live_store.close()
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    assert (tmp_path / "site" / "index.html").exists()


def test_an_empty_results_directory_is_a_site_too(tmp_path: Path) -> None:
    written = write(tmp_path / "nothing", tmp_path / "site")
    assert "There is no run yet" in (written.folder / "index.html").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/",
        ".",
        "..",
        "a/b",
        "A",
        "a",
        "",
        "ä",
        "\ud800",
        "x" * 1000,
        "CON",
        "a\0b",
    ],
)
def test_file_names_are_plain_whatever_the_name(name: str) -> None:
    stem = file_stem(name)
    assert re.fullmatch(r"[a-z0-9-]{1,80}", stem)
    assert not stem.startswith("-")


def test_file_names_tell_names_apart() -> None:
    names = ["a", "A", "a ", "a-", "ä", "", "\0", "x" * 100, "x" * 101]
    assert len({file_stem(name) for name in names}) == len(names)


def test_names_inside_a_site_only(tmp_path: Path) -> None:
    folder = SiteFolder(tmp_path / "site")
    for name in ("../x", "/x", "a/../../x", ""):
        with pytest.raises(ValueError, match="not a file name inside"):
            folder.write(name, "x")
    assert not (tmp_path / "x").exists()


def test_a_shared_site_has_no_private_data(tmp_path: Path) -> None:
    home = tmp_path / "home" / "alice" / "runs"
    names = Names(
        study="bench of /home/alice/secret/study.toml",
        note="asked bob@corp.example, see /home/alice/notes.txt",
    )
    mine = Workload(suite="file", name="/home/alice/private/model.py")
    for number in range(2):
        rows = [
            comparison(mine, Verdict.FASTER, 1.5, names),
            comparison(MATMUL, Verdict.FASTER, 1.2),
        ]
        day = f"2025-01-0{number + 1}T00:00:00.000Z"
        folder = write_run(home / f"run-{number}", rows=rows, names=names, started=day)
        facts = json.loads((folder / "run.json").read_text())
        facts["owner"] = {**facts["owner"], "host": "node17.corp.example"}
        (folder / "run.json").write_text(json.dumps(facts))
    (home / "broken").mkdir()
    (home / "broken" / "run.json").write_text("no json")
    live_store = LiveStore(home)
    written = write_site(live_store, tmp_path / "site", share=True)
    again = write_site(live_store, tmp_path / "site", share=True)
    live_store.close()
    assert (again.written, again.removed) == (0, 0)
    files = files_of(written.folder)
    secrets = (b"alice", b"node17", b"corp.example", b"/opt/torch", b"secret", b"private/")
    for name, data in files.items():
        if name.endswith(".html"):
            assert not [word for word in secrets if word in data], name
            assert not [word for word in secrets if word in name.encode()]
        for address in re.findall(rb'href="([^"#]+)"', data if name.endswith(".html") else b""):
            link = address.decode()
            assert link == "data:," or ((written.folder / name).parent / link).is_file(), name
    index = files["index.html"].decode()
    assert "bench of &lt;path-" in index
    assert "2.9.0" in index
    assert "1.500x" in files["workloads.html"].decode()
