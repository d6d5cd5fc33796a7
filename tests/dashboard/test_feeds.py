"""Progress as server-sent events: complete, in order, shared by all clients, and ended in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.dashboard.sample_dashboard import open_client, write_run
from torchyard.bench.bench_run import RecordedProgress
from torchyard.core.comparison import Verdict
from torchyard.core.events import Event
from torchyard.dashboard import feeds as feeds_module
from torchyard.dashboard.feeds import Feeds
from torchyard.dashboard.live_store import RunState
from torchyard.process.owner import owner_of
from torchyard.results.directory import PROGRESS_FILE

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def going(tmp_path: Path) -> Path:
    """A run of this process that is going."""
    return write_run(tmp_path / "runs" / "going", state="running")


def end(folder: Path, state: str = "finished") -> None:
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"running"', f'"{state}"'))


def parsed(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each event of a stream."""
    found = []
    for part in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def read_all(feeds: Feeds, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    return parsed("".join([part async for part in feeds.watch(folder)]))


async def until_watched_by(feeds: Feeds, count: int) -> None:
    with anyio.fail_after(60):
        while feeds.watchers != count:  # noqa: ASYNC110 -- the product tells no one
            await anyio.sleep(0.02)


def waiting_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def tell(progress: RecordedProgress, text: str) -> None:
    progress.listen(Event(kind="workload", text=text, workload="models/gpt", fraction=0.5))


async def test_what_was_and_what_comes_in_order_and_then_the_end(going: Path) -> None:
    progress, feeds = RecordedProgress(going, lambda _: None), Feeds()
    tell(progress, "one")
    heard: list[str] = []

    async def watch() -> None:
        found = await read_all(feeds, going)
        heard.extend(str(data.get("text", data.get("state"))) for _, data in found)

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await until_watched_by(feeds, 1)
        tell(progress, "two")
        await anyio.sleep(0.7)
        tell(progress, "three")
        end(going)
    assert heard == ["one", "two", "three", "finished"]
    assert feeds.watchers == 0


async def test_a_finished_run_is_reported_immediately(going: Path) -> None:
    tell(RecordedProgress(going, lambda _: None), "one")
    end(going, "interrupted")
    started_s = time.monotonic()
    found = await read_all(Feeds(), going)
    assert [name for name, _ in found] == ["progress", "end"]
    assert found[-1][1] == {"state": "interrupted"}
    assert time.monotonic() - started_s < 30


async def test_many_clients_share_one_reader(going: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = RunState.now

    def counted(state: RunState) -> str:
        nonlocal looks
        looks += 1
        return real(state)

    monkeypatch.setattr(RunState, "now", counted)
    progress, feeds = RecordedProgress(going, lambda _: None), Feeds()
    tell(progress, "one")
    ended = 0

    async def watch() -> None:
        nonlocal ended
        found = await read_all(feeds, going)
        assert [name for name, _ in found] == ["progress", "progress", "end"]
        ended += 1

    async with anyio.create_task_group() as group:
        for _ in range(200):
            group.start_soon(watch)
        await until_watched_by(feeds, 200)
        tell(progress, "two")
        end(going)
    assert ended == 200
    assert looks < 200, "fewer than one per watcher"
    assert feeds.watchers == 0


async def test_a_client_that_disconnects_is_removed_and_others_stay(going: Path) -> None:
    progress, feeds = RecordedProgress(going, lambda _: None), Feeds()
    heard: list[str] = []
    leaving = anyio.CancelScope()

    async def leave() -> None:
        with leaving:
            async with anyio.create_task_group() as leavers:
                for _ in range(20):
                    leavers.start_soon(read_all, feeds, going)

    async def stays() -> None:
        heard.extend(name for name, _ in await read_all(feeds, going))

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        group.start_soon(stays)
        await until_watched_by(feeds, 21)
        leaving.cancel()
        await until_watched_by(feeds, 1)
        tell(progress, "one")
        end(going)
    assert heard == ["progress", "end"]
    assert not feeds._feeds


async def test_stopping_ends_every_stream_without_an_end_of_the_run(going: Path) -> None:
    feeds = Feeds()
    found: list[tuple[str, dict[str, Any]]] = []

    async def watch() -> None:
        found.extend(await read_all(feeds, going))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await until_watched_by(feeds, 1)
            feeds.stop()
    assert found == []


async def test_a_bench_that_was_killed_is_interrupted(going: Path) -> None:
    child = waiting_process()
    facts = json.loads((going / "run.json").read_text())
    facts["owner"] = owner_of(child.pid)
    (going / "run.json").write_text(json.dumps(facts))
    heard: list[dict[str, Any]] = []

    async def watch() -> None:
        heard.extend(data for _, data in await read_all(Feeds(), going))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(0.7)
            assert heard == []
            child.kill()
            child.communicate()
    assert heard == [{"state": "interrupted"}]


@pytest.mark.parametrize(
    ("break_it", "state"),
    [
        (lambda path: path.unlink(), "removed"),
        (lambda path: path.write_text("no json"), "damaged"),
        (lambda path: path.write_text('{"format": 1, "state": "odd"}'), "odd"),
    ],
)
async def test_a_run_that_vanishes_or_breaks_ends_the_stream(
    going: Path, break_it: Any, state: str
) -> None:
    break_it(going / "run.json")
    assert await read_all(Feeds(), going) == [("end", {"state": state})]


async def test_texts_cannot_end_an_event(going: Path) -> None:
    progress = RecordedProgress(going, lambda _: None)
    evil = "a\n\nevent: end\ndata: {}\n\n\r\r\u2028"
    tell(progress, evil)
    with (going / PROGRESS_FILE).open("ab") as file:
        file.write(b'{"speedup": NaN, "text": "x"}\nno record\n')
    end(going)
    found = await read_all(Feeds(), going)
    assert [name for name, _ in found] == ["progress", "progress", "end"]
    assert found[0][1]["text"] == evil
    assert found[1][1]["speedup"] is None


def test_the_stream_over_http(going: Path) -> None:
    progress = RecordedProgress(going, lambda _: None)
    tell(progress, "one")
    end(going)
    with open_client(going.parent) as dashboard:
        answer = dashboard.client.get("/events?id=going")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        assert [name for name, _ in parsed(answer.text)] == ["progress", "end"]
        assert answer.text.startswith("retry: ")


def test_asking_whether_there_is_a_stream_opens_none(going: Path) -> None:
    with open_client(going.parent) as dashboard:
        answer = dashboard.client.head("/events?id=going")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert dashboard.feeds.watchers == 0


def test_a_run_is_read_again_only_when_its_file_changed(going: Path) -> None:
    state = RunState(going)
    assert state.now() == "running"
    facts = (going / "run.json").stat()
    # The same file, by its mark: what is in it is not looked at.
    (going / "run.json").write_text("no json")
    os.utime(going / "run.json", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert state.now() == "running"
    os.utime(going / "run.json")
    assert state.now() == "damaged"
    (going / "run.json").unlink()
    assert state.now() == "removed"


def test_too_many_clients_are_asked_to_retry(going: Path) -> None:
    with open_client(going.parent) as dashboard:
        dashboard.feeds._watchers = feeds_module.MOST_WATCHERS
        answer = dashboard.client.get("/events?id=going")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "30"


def test_stored_progress_has_what_a_page_needs(going: Path) -> None:
    from tests.dashboard.sample_dashboard import MATMUL, comparison

    events: list[Event] = []
    progress = RecordedProgress(going, events.append)
    made = comparison(MATMUL, Verdict.FASTER, 1.25)
    event = Event(kind="comparison", text="x" * 10_000, workload=MATMUL.label, comparison=made)
    progress.listen(event)
    progress.close()
    progress.listen(event)
    assert events == [event, event]
    (line,) = (going / PROGRESS_FILE).read_text().splitlines()
    record = json.loads(line)
    assert (record["verdict"], record["speedup"], record["candidate"]) == (
        "faster",
        1.25,
        "inductor",
    )
    assert len(line) < 1000
