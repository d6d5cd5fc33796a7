"""A small Debian archive made for tests: real source packages, a real index, served over HTTP."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tests.builds.sources.file_server import FileServer, Reply


def make_source_package(folder: Path, name: str, version: str) -> list[Path]:
    """A package in the format 3.0 (quilt) with one patch and a component; its files."""
    upstream = version.rpartition("-")[0]
    bare = upstream.rpartition(":")[2]
    tree = folder / f"{name}-{bare}"
    (tree / "debian" / "source").mkdir(parents=True)
    (tree / "file").write_text("upstream\n", encoding="utf-8")
    (tree / "extra").mkdir()
    (tree / "extra" / "part").write_text("component\n", encoding="utf-8")
    start = folder / f"{name}_{bare}.orig"
    argv = ("tar", "-czf", f"{start}.tar.gz", "-C", folder, "--exclude=debian", "--exclude=extra")
    subprocess.run((*argv, tree.name), check=True)
    subprocess.run(("tar", "-czf", f"{start}-extra.tar.gz", "-C", tree, "extra"), check=True)
    debian = {
        "source/format": "3.0 (quilt)\n",
        "control": f"Source: {name}\nMaintainer: A <a@example.org>\nStandards-Version: 4.6.2\n\n"
        f"Package: {name}\nArchitecture: any\nDescription: x\n",
        "changelog": f"{name} ({version}) there; urgency=low\n\n  * x\n\n"
        " -- A <a@example.org>  Thu, 01 Jan 2026 00:00:00 +0000\n",
        "patches/series": "# first\nfix.patch\n",
        "patches/fix.patch": "--- a/file\n+++ b/file\n@@ -1 +1 @@\n-upstream\n+patched\n",
    }
    for path_name, text in debian.items():
        path = tree / "debian" / path_name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run(
        ("dpkg-source", "-b", tree.name), cwd=folder, check=True, capture_output=True, text=True
    )
    return sorted(path for path in folder.iterdir() if path.is_file())


class DebianArchive:
    """Suites on a file server, for apt."""

    def __init__(self, server: FileServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.uri = f"{server.address}/debian"

    def publish(self, suite: str, name: str, version: str) -> None:
        """One package, as the whole of a suite."""
        pool = self.folder / "pool" / suite / name
        pool.mkdir(parents=True)
        for path in make_source_package(pool, name, version):
            self.server.replies[f"/debian/{path.relative_to(self.folder)}"] = Reply(
                path.read_bytes()
            )
        sources = subprocess.run(
            ("dpkg-scansources", pool.relative_to(self.folder)),
            cwd=self.folder,
            check=True,
            capture_output=True,
        ).stdout
        self._index(suite, sources)

    def withdraw(self, file_name: str) -> None:
        """The index goes on listing a file that is no longer there."""
        (path,) = (path for path in self.server.replies if path.endswith(f"/{file_name}"))
        del self.server.replies[path]

    def _index(self, suite: str, sources: bytes) -> None:
        sha256 = hashlib.sha256(sources).hexdigest()
        release = (
            f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nComponents: main\n"
            "Date: Thu, 01 Jan 2026 00:00:00 UTC\nValid-Until: Fri, 02 Jan 2026 00:00:00 UTC\n"
            f"SHA256:\n {sha256} {len(sources)} main/source/Sources\n"
        )
        base = f"/debian/dists/{suite}"
        self.server.replies[f"{base}/Release"] = Reply(release.encode())
        self.server.replies[f"{base}/main/source/Sources"] = Reply(sources)


def make_machine(folder: Path, archive: DebianArchive, *, own_suite: str) -> Path:
    """An apt configuration of another machine, whose own suite is on the archive; for APT_CONFIG."""
    etc = folder / "etc"
    for name in ("apt.conf.d", "sources.list.d", "preferences.d", "trusted.gpg.d"):
        (etc / name).mkdir(parents=True)
    (etc / "sources.list.d" / "debian.sources").write_text(
        f"Types: deb\nURIs: {archive.uri}\nSuites: {own_suite} {own_suite}-updates\n"
        "Components: main\nTrusted: yes\nCheck-Valid-Until: no\n",
        encoding="utf-8",
    )
    trap = folder / "hook ran"
    configuration = folder / "machine.conf"
    configuration.write_text(
        f'Dir::Etc "{etc}/";\nDir::Etc::parts "{etc}/apt.conf.d";\n'
        f'Dir::State "{folder}/state";\nDir::Cache "{folder}/cache";\n'
        f"APT::Update::Post-Invoke-Success {{\"touch '{trap}'\";}};\n"
        f"APT::Update::Pre-Invoke {{\"touch '{trap}'\";}};\n"
        'Acquire::Retries "0";\n',
        encoding="utf-8",
    )
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    return configuration
