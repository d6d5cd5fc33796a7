"""`torchyard build lock` and `sbom`: what a build was made of, for machines."""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    talk,
    write_file,
)

__all__ = ["lock", "sbom"]

_LOCK_HELP = """
\b
Examples:
  torchyard build lock pytorch-2.6.0-trimmed --output torch.lock.toml
  torchyard build pytorch --variant trimmed --version 2.6.0 --locked torch.lock.toml

Write down the exact sources and packages of a finished build. `--locked FILE` builds the same
again, and says what no longer fits.
"""

_SBOM_HELP = """
\b
Examples:
  torchyard build sbom pytorch-2.6.0-trimmed > torch.cdx.json
  torchyard build sbom pytorch-2.6.0-trimmed --format spdx --output torch.spdx.json

Write the software bill of materials of a build: sources, wheels, tools and packages.
Needs the extra packages of `pip install torchyard[sbom]`.
"""


@click.command("lock", help=_LOCK_HELP)
@click.argument("build")
@click.option("--output", default="", metavar="FILE", help="Default: BUILD.lock.toml here.")
@common_options
def lock(build: str, output: str, as_json: bool) -> None:
    """Write the lock of a build."""
    from torchyard.build.changing import read_request
    from torchyard.build.components import resolve
    from torchyard.build.layout import YardHome
    from torchyard.build.lock import make_lock, write_lock
    from torchyard.build.record import find_build
    from torchyard.core.records import encode

    home = YardHome.default()
    entry = find_build(build, home)
    assert entry.record is not None  # noqa: S101  # find_build gives finished ones only
    made = make_lock(entry.record, resolve(read_request(entry.name, home)))
    path = Path(output or f"{entry.name}.lock.toml")
    check_writable(path, option="--output")
    write_lock(path, made)
    if as_json:
        print_json({"file": str(path), "lock": encode(made)})
    else:
        talk(f"wrote {path}")


@click.command("sbom", help=_SBOM_HELP)
@click.argument("build")
@click.option(
    "--format",
    "sbom_format",
    type=click.Choice(["cyclonedx", "spdx"]),
    default="cyclonedx",
    help="Standard to follow; both as JSON.",
)
@click.option("--output", default="", metavar="FILE", help="Default: stdout.")
@common_options
def sbom(build: str, sbom_format: str, output: str, as_json: bool) -> None:
    """Write the bill of materials of a build."""
    from torchyard.build.layout import YardHome
    from torchyard.build.record import find_build
    from torchyard.build.sbom import sbom_text

    record = find_build(build, YardHome.default()).record
    assert record is not None  # noqa: S101  # find_build gives finished ones only
    text = sbom_text(record, sbom_format)
    if output:
        write_file(Path(output), text, option="--output")
        if as_json:
            print_json({"file": output, "format": sbom_format})
        else:
            talk(f"wrote {output}")
    else:
        print_data(text)
