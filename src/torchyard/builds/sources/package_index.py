"""Find the source distribution of exactly one release on a package index, and download it.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from torchyard.builds.plan import SdistDownload
from torchyard.builds.sources.download import TransferSettings, download, open_address, refused
from torchyard.builds.sources.fetch_plan import local_path_of, sha256_of, without_credentials
from torchyard.errors import MissingTool, StepFailed

# Later ones win: pip reads the section of its command after [global], and variables last.
_SECTIONS = ("global", "install", "download", ":env:")


@dataclass(frozen=True, kw_only=True)
class PipSettings:
    """Where pip looks for packages."""

    indexes: tuple[str, ...]
    """Addresses of simple indexes, in the order of asking; none with `no-index`."""
    find_links: tuple[str, ...]
    """Folders, pages or files with links."""
    transfer: TransferSettings


def read_pip_settings() -> PipSettings:
    """Ask pip."""
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
    """Names and values of `pip config list`, the strongest section last."""
    found: list[tuple[int, str, str]] = []
    for line in listing.splitlines():
        left, equals, right = line.partition("=")
        section, _, name = left.rpartition(".")
        if equals and section in _SECTIONS:
            found.append((_SECTIONS.index(section), name.lower().replace("_", "-"), _text(right)))
    found.sort(key=lambda item: item[0])
    return ((name, value) for _, name, value in found)


def _text(literal: str) -> str:
    """A value as it is; pip prints it as Python would write it."""
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return literal
    return value if isinstance(value, str) else literal


def _default_index(pip: tuple[str, ...]) -> str:
    """The index pip asks when none is configured, as its help says."""
    words = " ".join(_run((*pip, "download", "--help")).stdout.split())
    found = re.search(r"--index-url <url>.*?\(default (\S+?)\)", words)
    if not found:
        raise MissingTool(
            "no package index is configured, and this pip names no default",
            hint="set one: `pip config set global.index-url URL`, or PIP_INDEX_URL",
        )
    return found[1]


def _configuration() -> tuple[tuple[str, ...], str]:
    """How pip is started (this interpreter's, or the first on PATH), and what it is set to."""
    # -P: a folder called pip in the current one is not pip.
    candidates: list[tuple[str, ...]] = [(sys.executable, "-P", "-m", "pip")]
    candidates += [(path,) for name in ("pip3", "pip") if (path := shutil.which(name))]
    candidates += [(path, "-m", "pip") for name in ("python3",) if (path := shutil.which(name))]
    why = ""
    for argv in candidates:
        try:
            ended = _run((*argv, "config", "list"))
        except OSError:
            continue
        if ended.returncode == 0:
            return argv, ended.stdout
        if "No module named pip" not in ended.stderr:
            why = without_credentials(ended.stderr.strip().rpartition("\n")[2])
    raise MissingTool(
        "pip, whose configuration says where source distributions are, does not answer",
        why=why,
        hint="mend `pip config list` (or install pip), or use another source of the recipe",
    )


def _run(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        # Help is folded to the width of the terminal, and an address must not be broken.
        "COLUMNS": "1000",
        "LC_ALL": "C.UTF-8",
    }
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment,
    )


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
    """Of the file."""
    sha256: str = ""
    yanked: bool = False


def download_sdist(action: SdistDownload, *, progress: Callable[[str], None]) -> None:
    """Put the source distribution at the action's path, checked."""
    fetch_sdist(action, read_pip_settings(), progress=progress)


def fetch_sdist(
    action: SdistDownload, settings: PipSettings, *, progress: Callable[[str], None]
) -> None:
    """As `download_sdist`, with settings that are known already."""
    seen: list[str] = []
    for place in _places(settings, action.name):
        links = list(_links(place, settings.transfer, progress))
        seen += [link.name for link in links if _is_of(link.name, action.name)]
        for link in links:
            if _is_release(link.name, action):
                _fetch(link, action, settings.transfer, progress)
                return
    raise _not_found(action, settings, seen)


def _places(settings: PipSettings, name: str) -> Iterator[str]:
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
        progress(f"{link.name} was yanked by its publisher; the recipe asks for it by version")
    if action.sha256 and link.sha256 and action.sha256 != link.sha256:
        raise StepFailed(
            f"{link.name} has the wrong checksum",
            why=f"sha256 wanted {action.sha256}, found {link.sha256} on the index",
            hint="correct the recipe's sha256, or find out why the index has another file",
        )
    wanted = action.sha256 or link.sha256
    progress(f"fetching {link.name}")
    download(link.address, path, sha256=wanted, progress=progress, settings=transfer)
    if not wanted:
        progress(f"{link.name}: the index gives no checksum; sha256 is {sha256_of(path)}")


def _links(
    place: str, transfer: TransferSettings, progress: Callable[[str], None]
) -> Iterator[_Link]:
    """What a folder, a page or an index lists; nothing when an index does not know the name."""
    local = local_path_of(place)
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
            raise refused(place, error) from error
        error.close()
        progress(f"{without_credentials(place)}: {error.code}")
        return
    except (OSError, HTTPException) as error:
        raise refused(place, error) from error
    # Links are relative to where redirects led; the login, if any, is for the asked place only.
    base = _with_login(reply.url, place)
    text = body.decode("utf-8", errors="replace")
    yield from _from_json(text, base) if kind.endswith("+json") else _from_html(text, base)


def _local_links(path: Path) -> Iterator[_Link]:
    if path.is_dir():
        # An index on disk has a page in each folder.
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
            f"{without_credentials(base)} is no page of a package index",
            why=f"its JSON has not the form of PEP 691 ({type(error).__name__})",
            hint="check the index that pip is configured for: `pip config list`",
        ) from error


def _from_html(text: str, base: str) -> Iterator[_Link]:
    page = _Page()
    page.feed(text)
    page.close()
    base = _joined(base, page.base) if page.base else base
    for target, yanked in page.links:
        address, fragment = urldefrag(_joined(base, target))
        found = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", fragment)
        yield _Link(
            address=address,
            name=unquote(urlsplit(address).path).rpartition("/")[2],
            sha256=found[1].lower() if found else "",
            yanked=yanked,
        )


class _Page(HTMLParser):
    """Collects the links of a page."""

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
    """A link's address, with the index's login when it leads to the same server."""
    return _with_login(urljoin(base, target), base)


def _with_login(address: str, of: str) -> str:
    left, right = urlsplit(of), urlsplit(address)
    login, _, host = left.netloc.rpartition("@")
    if login and right.scheme == left.scheme and right.netloc == host:
        return right._replace(netloc=left.netloc).geturl()
    return address


def _is_of(file_name: str, name: str) -> bool:
    try:
        return parse_sdist_filename(file_name)[0] == canonicalize_name(name)
    except (InvalidSdistFilename, InvalidVersion):
        return False


def _is_release(file_name: str, action: SdistDownload) -> bool:
    return _is_of(file_name, action.name) and (
        parse_sdist_filename(file_name)[1] == Version(action.version)
    )


def _not_found(action: SdistDownload, settings: PipSettings, seen: list[str]) -> StepFailed:
    places = ", ".join(
        without_credentials(place) for place in (*settings.find_links, *settings.indexes)
    )
    if seen:
        versions = sorted({parse_sdist_filename(name)[1] for name in seen}, reverse=True)
        why = "releases with one: " + ", ".join(map(str, versions[:8]))
        hint = "correct the recipe's source.sdist.version"
    else:
        why = "no release has one; wheels hold no source that can be built"
        hint = "correct the recipe's source.sdist.name, or use another source of the recipe"
    return StepFailed(
        f"no source distribution of {action.name} {action.version} on the index",
        why=f"{why} (asked: {places or 'nothing, pip has no-index'})",
        hint=hint,
    )
