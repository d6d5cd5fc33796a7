"""`torchyard serve` as a real process: output, access, exit, and live progress."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.dashboard.sample_dashboard import write_results_directory

STEP = """
    import time
    import torch

    def step(x):
        time.sleep(0.001)
        return x + 1

    def make():
        return step, torch.ones(4)
"""
LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Served:
    """A dashboard that answers."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def login(self) -> dict[str, str]:
        """Headers with the token of the address, if it has one."""
        token = parse_qs(urlsplit(self.url).query).get("token")
        return {"Authorization": f"Bearer {token[0]}"} if token else {}

    def get(self, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
        """Ask as somebody who has the address."""
        return self.get_as_stranger(path, **{**self.login, **headers})

    def get_as_stranger(
        self, path: str, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Ask as another user of the machine."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, float]:
        """Exit code, what it said, and how long it took."""
        started_s = time.monotonic()
        self.process.send_signal(number)
        _, output = self.process.communicate(timeout=60)
        return self.process.returncode, output, time.monotonic() - started_s


@contextmanager
def serve(home: Path, *options: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "serve", "--home", str(home), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        if "--json" in options:
            while not line.rstrip().endswith("}"):
                line += process.stdout.readline()
            line = json.loads(line)["url"]
        yield Served(process=process, url=line.strip())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_it_answers_on_loopback_only_and_ends_cleanly(tmp_path: Path) -> None:
    ids = write_results_directory(tmp_path)
    with serve(tmp_path) as served:
        assert served.url.startswith("http://127.0.0.1:")
        status, page, headers = served.get("/")
        assert status == 200
        assert ids[0] in page
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["server"] is None
        assert served.get("/", Host="evil.example")[0] == 400
        code, output, took_s = served.end()
        assert code == 0
        assert "Traceback" not in output
        assert output.endswith("stopped\n")
        assert took_s < 20
    # The port is free at once.
    with socket.create_server(("127.0.0.1", served.port)):
        pass


def test_sigterm_ends_it_cleanly_too_even_with_streams_open(tmp_path: Path) -> None:
    from tests.dashboard.sample_dashboard import write_run

    write_run(tmp_path / "going", state="running")
    with serve(tmp_path) as served:
        connections = []
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
            connection.request("GET", "/events?id=going", headers=served.login)
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.readline().startswith(b"retry")
            connections.append((connection, answer))
        code, output, took_s = served.end(signal.SIGTERM)
        assert code == 0
        assert "Traceback" not in output
        assert took_s < 20
        for connection, answer in connections:
            answer.read()
            connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
def test_a_token_is_needed_on_every_address_and_shown_once(tmp_path: Path, host: str) -> None:
    with serve(tmp_path, "--host", host, "--json") as served:
        (token,) = parse_qs(urlsplit(served.url).query)["token"]
        assert len(token) >= 40
        assert served.get_as_stranger("/")[0] == 401
        assert served.get_as_stranger("/api/runs", Authorization=f"Bearer {token}")[0] == 200
        assert served.get_as_stranger("/api/runs", Authorization=f"Bearer {token}x")[0] == 401
        status, _, headers = served.get_as_stranger(f"/?token={token}")
        assert status == 303
        cookie = headers["set-cookie"].partition(";")[0]
        assert cookie.startswith(f"torchyard-{served.port}=")
        assert served.get_as_stranger("/", Cookie=cookie)[0] == 200
        rebound = served.get_as_stranger("/", Cookie=cookie, Host="evil.example")[0]
        assert rebound == (400 if host == "127.0.0.1" else 200)
        _, output, _ = served.end()
        assert "shown only once" in output
        assert token not in output


def test_a_token_of_the_users_own_is_never_shown(tmp_path: Path) -> None:
    token = "a-token-of-my-own-1234"  # noqa: S105
    (tmp_path / "token").write_text(token)
    with serve(tmp_path, "--token-file", str(tmp_path / "token")) as served:
        assert token not in served.url
        assert served.get("/")[0] == 401
        assert served.get("/", Authorization=f"Bearer {token}")[0] == 200
        assert served.get("/", Authorization=f"Bearer {token}", Host="proxy.example")[0] == 200
        assert token not in served.end()[1]


def test_without_a_token_only_when_asked_for_and_only_on_loopback(tmp_path: Path) -> None:
    with serve(tmp_path, "--no-token") as served:
        assert "token" not in served.url
        assert served.get_as_stranger("/")[0] == 200
        assert served.get_as_stranger("/", Host="evil.example")[0] == 400
        assert served.end()[0] == 0
    (tmp_path / "token").write_text("a-token-of-my-own-1234")
    for options in (["--host", "0.0.0.0"], ["--token-file", str(tmp_path / "token")]):  # noqa: S104
        completed = run_serve("--home", str(tmp_path), "--no-token", *options)
        assert completed.returncode == 2
        assert "--no-token" in completed.stderr
        assert "hint" in completed.stderr


def test_the_browser_is_opened_without_the_token_on_its_command_line(tmp_path: Path) -> None:
    """Every user of a machine can read the arguments of every process."""
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f"""#!/bin/sh
printf '%s' "$*" > {seen}.part
stat -c %a "$(dirname "${{1#file://}}")" > {seen}.mode
cp "${{1#file://}}" {seen}.html
mv {seen}.part {seen}
""")
    browser.chmod(0o755)
    os.environ["BROWSER"] = str(browser)
    try:
        with serve(tmp_path / "home", "--open") as served:
            deadline = time.monotonic() + LIMIT_S
            while not seen.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            token = served.login["Authorization"].removeprefix("Bearer ")
            assert token not in seen.read_text()
            assert token in Path(f"{seen}.html").read_text()
            assert Path(f"{seen}.mode").read_text().strip() == "700"
            assert served.end()[0] == 0
            assert not Path(seen.read_text().removeprefix("file://")).exists()
    finally:
        del os.environ["BROWSER"]


def run_serve(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchyard", "serve", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
    )


def test_a_port_in_use_and_an_invalid_host(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        completed = run_serve("--home", str(tmp_path), "--port", str(port))
        assert completed.returncode == 2
        assert f"cannot listen on 127.0.0.1 port {port}" in completed.stderr
    completed = run_serve("--home", str(tmp_path), "--host", "no.such.host.invalid")
    assert completed.returncode == 2
    assert "is not an address" in completed.stderr
    completed = run_serve("--home", str(tmp_path), "--token-file", str(tmp_path / "none"))
    assert completed.returncode == 2
    assert "contains no token" in completed.stderr


def test_without_its_packages_it_says_how_to_get_them(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['uvicorn'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'uvicorn' else real(name, *a)\n" + hidden
    )
    completed = run_serve("--home", str(tmp_path), PYTHONPATH=str(tmp_path))
    assert completed.returncode == 4
    assert "the dashboard needs uvicorn" in completed.stderr
    assert "pip install 'torchyard[dashboard]'" in completed.stderr


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, object]]]:
    """Events of a stream as they come."""
    name = ""
    for raw in answer:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextmanager
def bench(tmp_path: Path, home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A tiny real bench into that home."""
    work, mine = tmp_path / "step.py", tmp_path / "mine.py"
    work.write_text(dedent(STEP))
    mine.write_text("def healthy(module):\n    return lambda x: module(x)\n")
    command = ["bench", "--only", str(work), "--candidate", f"{mine}:healthy", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", *command, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TORCHYARD_HOME": str(home.parent)},
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def going(served: Served) -> str:
    """The id of the run that is going, as soon as there is one."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        runs = json.loads(served.get("/api/live")[1])["runs"]
        if runs:
            return str(runs[0]["id"])
        time.sleep(0.2)
    raise AssertionError("no run started")


@pytest.mark.torch
def test_a_real_bench_is_followed_live_until_it_ends(tmp_path: Path) -> None:
    home = tmp_path / "yard" / "runs"
    with serve(home) as served, bench(tmp_path, home, "--time", "3s") as process:
        run = going(served)
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=LIMIT_S)
        connection.request("GET", f"/events?id={run}", headers=served.login)
        seen, came_while_running = [], 0
        for name, data in events(connection.getresponse()):
            seen.append((name, data))
            came_while_running += process.poll() is None
        connection.close()
        assert seen[0][1]["kind"] == "workload"
        assert "comparison" in {data.get("kind") for _, data in seen}
        assert seen[-1] == ("end", {"state": "finished"})
        fractions = [
            data["fraction"] for _, data in seen if isinstance(data.get("fraction"), float)
        ]
        assert fractions[-1] == 1.0
        assert came_while_running >= 3
        deadline = time.monotonic() + LIMIT_S
        while json.loads(served.get("/api/live")[1])["runs"]:
            assert time.monotonic() < deadline, "a finished run stays in the list of live runs"
            time.sleep(0.2)
        status = served.get(f"/run?id={run}")[0]
        assert (status, served.end()[1].count("Traceback")) == (200, 0)


@pytest.mark.torch
def test_a_bench_that_is_killed_is_shown_as_interrupted(tmp_path: Path) -> None:
    home = tmp_path / "yard" / "runs"
    with serve(home) as served, bench(tmp_path, home, "--time", "5m") as process:
        run = going(served)
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=LIMIT_S)
        connection.request("GET", f"/events?id={run}", headers=served.login)
        stream = events(connection.getresponse())
        next(stream)
        process.kill()
        process.wait()
        assert list(stream)[-1] == ("end", {"state": "interrupted"})
        connection.close()
        assert "interrupted" in served.get("/")[1]
        assert served.end()[0] == 0
