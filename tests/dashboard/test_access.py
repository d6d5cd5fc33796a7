"""Access control, and the headers of every response."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.dashboard.sample_dashboard import open_client, write_results_directory
from torchyard.dashboard.app import Access, is_loopback, new_token, read_token
from torchyard.errors import UsageError

TOKEN = "t0ken-of-twenty-and-more-letters"  # noqa: S105
EVERYWHERE = ".".join("0000")
PATHS = (
    "/",
    "/run?id=x",
    "/workloads",
    "/history?workload=a&baseline=b&candidate=c",
    "/compare",
    "/live",
    "/events?id=x",
    "/assets/x",
    "/api/runs",
    "/api/run?id=x",
    "/api/workloads",
    "/api/history?workload=a&baseline=b&candidate=c",
    "/api/compare?before=a&after=b",
    "/api/live",
    "/nowhere",
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_carries_the_headers(tmp_path: Path, path: str, method: str) -> None:
    with open_client(tmp_path) as dashboard:
        answer = dashboard.client.request(method, path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        if method == "HEAD":
            assert answer.content == b""


def test_a_run_page_allows_its_own_scripts_by_fingerprint_only(tmp_path: Path) -> None:
    (run,) = write_results_directory(tmp_path, count=1)
    with open_client(tmp_path) as dashboard:
        policy = dashboard.client.get(f"/run?id={run}").headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "script-src" in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/run?id=x", "/nowhere"])
def test_only_read_methods_are_allowed(tmp_path: Path, method: str, path: str) -> None:
    with open_client(tmp_path) as dashboard:
        answer = dashboard.client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8000",
        "localhost:9",
        "[::1]:80",
        "[::1]",
        "LOCALHOST",
        "127.9.9.9",
        "localhost.",
        "dash.localhost:1",
    ],
)
def test_hosts_of_this_machine(tmp_path: Path, host: str) -> None:
    with open_client(tmp_path) as dashboard:
        assert dashboard.client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        EVERYWHERE,
        "[2001:db8::1]:80",
        "",
        "localhost@evil.example",
        "2130706433",
        "127.0.0.1:8000:9",
        "localhost:evil",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/runs", "/events?id=x"])
def test_hosts_that_may_be_rebound(tmp_path: Path, host: str, path: str) -> None:
    with open_client(tmp_path) as dashboard:
        answer = dashboard.client.get(path, headers={"Host": host})
        assert answer.status_code == 400
        assert "DNS rebinding" in answer.text


def test_with_a_token_any_host_and_without_a_token_none(tmp_path: Path) -> None:
    with open_client(
        tmp_path, access=Access(token=TOKEN, any_host=True), address="http://yard.example:8000"
    ) as dashboard:
        for path in PATHS:
            answer = dashboard.client.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1", ""])
def test_a_token_on_loopback_does_not_open_it_to_other_names(tmp_path: Path, host: str) -> None:
    with open_client(tmp_path, access=Access(token=TOKEN)) as dashboard:
        headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
        assert dashboard.client.get("/", headers=headers).status_code == 400


def test_any_host_without_a_token_is_never_open(tmp_path: Path) -> None:
    with open_client(tmp_path, access=Access(any_host=True)) as dashboard:
        assert dashboard.client.get("/", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer  {TOKEN} "])
def test_the_token_as_a_header(tmp_path: Path, given: str) -> None:
    with open_client(tmp_path, access=Access(token=TOKEN)) as dashboard:
        answer = dashboard.client.get("/api/runs", headers={"Authorization": given})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer \xff\xfe",
        f"Bearer {TOKEN.upper()}",
    ],
)
def test_wrong_headers(tmp_path: Path, given: str) -> None:
    with open_client(tmp_path, access=Access(token=TOKEN)) as dashboard:
        headers = {b"authorization": given.encode("latin-1")}
        assert dashboard.client.get("/api/runs", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("path", "goal"),
    [
        (f"/?token={TOKEN}", "./"),
        (f"/?study=a+b&token={TOKEN}&sort=torch", "./?study=a+b&sort=torch"),
        (f"/workloads?token={TOKEN}", "./workloads"),
        (f"/api/runs?token={TOKEN}", "./runs"),
        (f"//evil.example/x?token={TOKEN}", "./x"),
        (f"/a%0d%0aSet-Cookie:%20x?token={TOKEN}", None),
    ],
)
def test_a_login_takes_the_token_out_of_the_address(
    tmp_path: Path, path: str, goal: str | None
) -> None:
    with open_client(tmp_path, access=Access(token=TOKEN)) as dashboard:
        answer = dashboard.client.get(f"http://127.0.0.1:8000{path}")
        assert answer.status_code == 303
        location = answer.headers["location"]
        assert TOKEN not in location
        assert location.startswith("./")
        if goal is not None:
            assert location == goal
        cookie = answer.headers["set-cookie"]
        assert TOKEN not in cookie
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {
            part.strip() for part in cookie.split(";")
        }
        assert dashboard.client.get("/").status_code == 200


def test_the_cookie_is_secure_where_the_connection_is(tmp_path: Path) -> None:
    with open_client(
        tmp_path, access=Access(token=TOKEN, any_host=True), address="https://yard.example"
    ) as dashboard:
        assert "Secure" in dashboard.client.get(f"/?token={TOKEN}").headers["set-cookie"]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "%20", f"{TOKEN}&token=wrong"])
def test_a_wrong_login_gives_no_cookie_even_to_those_inside(tmp_path: Path, token: str) -> None:
    with open_client(tmp_path, access=Access(token=TOKEN)) as dashboard:
        dashboard.client.get(f"/?token={TOKEN}")
        answer = dashboard.client.get(f"/?token={token}")
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_the_token_itself_is_no_cookie_and_cookies_of_other_ports_do_not_count(
    tmp_path: Path,
) -> None:
    access = Access(token=TOKEN, cookie_name="torchyard-8000")
    with open_client(tmp_path, access=access) as dashboard:
        for cookie in (
            f"torchyard-8000={TOKEN}",
            f"torchyard-9000={access.cookie_value}",
            "torchyard-8000=",
        ):
            assert dashboard.client.get("/", headers={"Cookie": cookie}).status_code == 401
        right = f"torchyard-8000={access.cookie_value}"
        assert dashboard.client.get("/", headers={"Cookie": right}).status_code == 200


def test_without_a_token_there_is_nothing_to_log_in_to(tmp_path: Path) -> None:
    with open_client(tmp_path) as dashboard:
        assert dashboard.client.get("/?token=x").status_code == 400


def test_new_tokens_are_long_and_unique() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 40


@pytest.mark.parametrize("text", [TOKEN, f"{TOKEN}\n", f"  {TOKEN}  \n\n", "x" * 16, "x" * 512])
def test_a_token_from_a_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    assert read_token(path) == text.strip()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"short",
        b"x" * 15,
        b"x" * 513,
        b"x" * 100_000,
        b"two words of enough letters",
        b"two\nlines-of-enough-letters",
        b"\xff" * 20,
        "ü".encode() * 20,
        b"x" * 20 + b"\0",
    ],
)
def test_files_that_hold_no_token(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="contains no token") as raised:
        read_token(path)
    assert "openssl rand" in raised.value.hint
    assert content.decode("latin-1").strip() == "" or content.decode("latin-1") not in str(
        raised.value.why
    )


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="contains no token"):
            read_token(path)
    assert stat.S_ISDIR(tmp_path.stat().st_mode)


@pytest.mark.parametrize("host", ["", "example", "127.0.0.1.example", "1.2.3.4", "::", EVERYWHERE])
def test_what_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
