"""Find the source distribution of one release on a package index and download it.

The index, proxies and certificates are those that pip is configured for on this machine.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from torchyard.builds.plan import SdistDownload
from torchyard.builds.sources.download import (
    TransferSettings,
    download,
    open_address,
    transfer_error,
)
from torchyard.builds.sources.fetch_plan import local_path, sha256_of, without_credentials
from torchyard.errors import MissingTool, StepFailed
from torchyard.process.programs import capture

# In order of precedence, lowest first: pip reads the section of its command after [global], and
# variables last.
_SECTIONS = ("global", "install", "download", ":env:")


@dataclass(frozen=True, kw_only=True)
class PipSettings:
    """Package locations that pip is configured for."""

    indexes: tuple[str, ...]
    """URLs of simple indexes, in search order; empty with `no-index`."""
    find_links: tuple[str, ...]
    """Folders, pages or files with links."""
    transfer: TransferSettings


def read_pip_settings() -> PipSettings:
    """Read the settings of this machine's pip."""
    pip, listing = _configuration()
    values = dict(_values(listing))
    indexes: tuple[str, ...] = ()
    if not _is_true(values.get("no-index", "")):
        first = values.get("index-url", "").strip() or _default_index(pip)
        indexes = (first, *values.get("extra-index-url", "").split())
    return PipSettings(
        indexes=indexes,
        find_links=tuple(values.get("find-links", "").split()),
        transfer=TransferSettings(
            ca_file=values.get("cert", ""),
            trusted_hosts=tuple(values.get("trusted-host", "").split()),
            proxy=values.get("proxy", ""),
        ),
    )


def _values(listing: str) -> Iterator[tuple[str, str]]:
    """Parse `pip config list`; the section with the highest precedence comes last."""
    settings: list[tuple[int, str, str]] = []
    for line in listing.splitlines():
        key, equals, literal = line.partition("=")
        section, _, name = key.rpartition(".")
        if equals and section in _SECTIONS:
            settings.append(
                (_SECTIONS.index(section), name.lower().replace("_", "-"), _text(literal))
            )
    settings.sort(key=lambda item: item[0])
    return ((name, value) for _, name, value in settings)


def _text(literal: str) -> str:
    """Parse a value, which pip prints as a Python literal."""
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return literal
    return value if isinstance(value, str) else literal


def _default_index(pip: tuple[str, ...]) -> str:
    """Return pip's default index, from its help text."""
    words = " ".join(_run((*pip, "download", "--help")).stdout.split())
    match = re.search(r"--index-url <url>.*?\(default (\S+?)\)", words)
    if not match:
        raise MissingTool(
            "no package index is configured, and pip's default is unknown",
            hint="set one with `pip config set global.index-url URL` or PIP_INDEX_URL",
        )
    return match[1]


def _configuration() -> tuple[tuple[str, ...], str]:
    """Return the command of pip (of this interpreter, or the first on PATH) and its settings."""
    # -P: do not import from the current folder.
    candidates: list[tuple[str, ...]] = [(sys.executable, "-P", "-m", "pip")]
    candidates += [(path,) for name in ("pip3", "pip") if (path := shutil.which(name))]
    candidates += [(path, "-m", "pip") for name in ("python3",) if (path := shutil.which(name))]
    why = ""
    for argv in candidates:
        try:
            completed = _run((*argv, "config", "list"))
        except OSError:
            continue
        if completed.returncode == 0:
            return argv, completed.stdout
        if "No module named pip" not in completed.stderr:
            why = without_credentials(completed.stderr.strip().rpartition("\n")[2])
    raise MissingTool(
        "cannot read the configuration of pip, which gives the package index",
        why=why,
        hint="install pip, or fix `pip config list`, or use another source of the recipe",
    )


def _run(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        # Keeps the help text from wrapping, which would break a URL.
        "COLUMNS": "1000",
        "LC_ALL": "C.UTF-8",
    }
    return capture(argv, variables=variables)


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on", "t", "y")


_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
_PAGE_LIMIT_BYTES = 64 * 1024 * 1024
_GONE = (404, 410)


@dataclass(frozen=True, kw_only=True)
class _Link:
    address: str
    name: str
    """File name."""
    sha256: str = ""
    yanked: bool = False


def download_sdist(action: SdistDownload, *, progress: Callable[[str], None]) -> None:
    """Download the source distribution to the path of the action and check it."""
    fetch_sdist(action, read_pip_settings(), progress=progress)


def fetch_sdist(
    action: SdistDownload, settings: PipSettings, *, progress: Callable[[str], None]
) -> None:
    """Download a source distribution with the given pip settings."""
    sdists: list[str] = []
    for place in _locations(settings, action.name):
        links = list(_links(place, settings.transfer, progress))
        sdists += [link.name for link in links if _is_sdist_of(link.name, action.name)]
        for link in links:
            if _is_release(link.name, action):
                _fetch(link, action, settings.transfer, progress)
                return
    raise _not_found(action, settings, sdists)


def _locations(settings: PipSettings, name: str) -> Iterator[str]:
    yield from settings.find_links
    for index in settings.indexes:
        yield f"{index.rstrip('/')}/{canonicalize_name(name)}/"


def _fetch(
    link: _Link,
    action: SdistDownload,
    transfer: TransferSettings,
    progress: Callable[[str], None],
) -> None:
    path = Path(action.path)
    if link.yanked:
        progress(f"{link.name} was yanked by its publisher; used, because the recipe pins it")
    if action.sha256 and link.sha256 and action.sha256 != link.sha256:
        raise StepFailed(
            f"{link.name} has the wrong checksum",
            why=f"sha256: expected {action.sha256}, got {link.sha256} from the index",
            hint="correct the recipe's sha256, or find out why the file on the index differs",
        )
    sha256 = action.sha256 or link.sha256
    progress(f"fetching {link.name}")
    download(link.address, path, sha256=sha256, progress=progress, settings=transfer)
    if not sha256:
        progress(f"{link.name}: the index has no checksum; sha256 is {sha256_of(path)}")


def _links(
    place: str, transfer: TransferSettings, progress: Callable[[str], None]
) -> Iterator[_Link]:
    """Yield the links of a folder, page or index; none if the index does not have the project."""
    local = local_path(place)
    if local is not None:
        yield from _local_links(local.expanduser())
        return
    try:
        reply = open_address(place, headers={"Accept": _ACCEPT}, settings=transfer)
        try:
            body = reply.read(_PAGE_LIMIT_BYTES)
            kind = reply.headers.get_content_type()
        finally:
            reply.close()
    except HTTPError as error:
        if error.code not in _GONE:
            raise transfer_error(place, error) from error
        error.close()
        progress(f"{without_credentials(place)}: {error.code}")
        return
    except (OSError, HTTPException) as error:
        raise transfer_error(place, error) from error
    # Links are relative to the final URL; the login is only for the requested host.
    base = _with_login(reply.url, place)
    text = body.decode("utf-8", errors="replace")
    yield from _from_json(text, base) if kind.endswith("+json") else _from_html(text, base)


def _local_links(path: Path) -> Iterator[_Link]:
    if path.is_dir():
        # A local index has a page in each folder.
        page = path / "index.html"
        if page.is_file():
            yield from _from_html(
                page.read_text(encoding="utf-8", errors="replace"), f"{page.as_uri()}"
            )
        for file in sorted(path.iterdir()):
            yield _Link(address=str(file), name=file.name)
    elif path.suffix in (".html", ".htm") and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from _from_html(text, path.as_uri())
    elif path.is_file():
        yield _Link(address=str(path), name=path.name)


def _from_json(text: str, base: str) -> Iterator[_Link]:
    try:
        files = json.loads(text)["files"]
        for file in files:
            yield _Link(
                address=_joined(base, str(file["url"])),
                name=str(file["filename"]),
                sha256=str(file.get("hashes", {}).get("sha256", "")).lower(),
                yanked=bool(file.get("yanked", False)),
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StepFailed(
            f"{without_credentials(base)} is not a page of a package index",
            why=f"its JSON does not follow PEP 691 ({type(error).__name__})",
            hint="check the index that pip is configured for: `pip config list`",
        ) from error


def _from_html(text: str, base: str) -> Iterator[_Link]:
    page = _Page()
    page.feed(text)
    page.close()
    base = _joined(base, page.base) if page.base else base
    for target, yanked in page.links:
        address, fragment = urldefrag(_joined(base, target))
        match = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", fragment)
        yield _Link(
            address=address,
            name=unquote(urlsplit(address).path).rpartition("/")[2],
            sha256=match[1].lower() if match else "",
            yanked=yanked,
        )


class _Page(HTMLParser):
    """Parser that collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        target = values.get("href")
        if target and tag == "a":
            self.links.append((target.strip(), "data-yanked" in values))
        elif target and tag == "base" and not self.base:
            self.base = target.strip()


def _joined(base: str, target: str) -> str:
    """Resolve a link, with the login of the index if it is on the same server."""
    return _with_login(urljoin(base, target), base)


def _with_login(address: str, index: str) -> str:
    index_parts, parts = urlsplit(index), urlsplit(address)
    login, _, host = index_parts.netloc.rpartition("@")
    if login and parts.scheme == index_parts.scheme and parts.netloc == host:
        return parts._replace(netloc=index_parts.netloc).geturl()
    return address


def _is_sdist_of(file_name: str, name: str) -> bool:
    try:
        return parse_sdist_filename(file_name)[0] == canonicalize_name(name)
    except (InvalidSdistFilename, InvalidVersion):
        return False


def _is_release(file_name: str, action: SdistDownload) -> bool:
    return _is_sdist_of(file_name, action.name) and (
        parse_sdist_filename(file_name)[1] == Version(action.version)
    )


def _not_found(action: SdistDownload, settings: PipSettings, sdists: list[str]) -> StepFailed:
    places = ", ".join(
        without_credentials(place) for place in (*settings.find_links, *settings.indexes)
    )
    if sdists:
        versions = sorted({parse_sdist_filename(name)[1] for name in sdists}, reverse=True)
        why = "releases with a source distribution: " + ", ".join(map(str, versions[:8]))
        hint = "correct the recipe's source.sdist.version"
    else:
        why = "no release has one; wheels cannot be built from source"
        hint = "correct the recipe's source.sdist.name, or use another source of the recipe"
    return StepFailed(
        f"no source distribution of {action.name} {action.version} on the index",
        why=f"{why} (searched: {places or 'nothing, pip has no-index'})",
        hint=hint,
    )
