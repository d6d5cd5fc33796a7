"""`torchyard build recipes`: which recipes there are, and what one says."""

from __future__ import annotations

import platform

import click

from torchyard.cli.output import common_options, print_data, print_json, printable

__all__ = ["recipes"]

_HELP = """
\b
Examples:
  torchyard build recipes                 every shipped recipe in one line
  torchyard build recipes pytorch         its variants, sources and options
  torchyard build recipes ./mine.toml --variant fast --json

List the recipes, or show one as it is after a variant is chosen.
"""


@click.command(help=_HELP)
@click.argument("recipe", required=False)
@click.option("--variant", default="", help="Show the recipe with this variant merged in.")
@click.option("--version", default="", help="Show the recipe for this release.")
@common_options
def recipes(recipe: str | None, variant: str, version: str, as_json: bool) -> None:
    """List recipes or show one."""
    from torchyard.build.recipe_file import load_recipe_file, read_recipe, shipped_recipes
    from torchyard.core.records import encode

    if recipe is None:
        found = [load_recipe_file(name) for name in shipped_recipes()]
        rows = [
            {
                "name": file.name,
                "summary": str(file.table.get("summary", "")),
                "variants": list(file.variants),
            }
            for file in found
        ]
        if as_json:
            print_json({"recipes": rows})
        else:
            print_data(
                "\n".join(_row(row["name"], row["summary"], row["variants"]) for row in rows)
            )
        return
    file = load_recipe_file(recipe)
    merged = read_recipe(file, variant=variant, version=version, machine=platform.machine())
    if as_json:
        print_json({"recipe": encode(merged), "variants": list(file.variants)})
        return
    lines = [f"{merged.name} {merged.version}", f"  {merged.summary}"]
    for name, table in file.table.get("variants", {}).items():
        lines.append(f"  variant {name:<14} {table.get('summary', '')}")
    kinds = [
        kind
        for kind in ("git", "folder", "tarball", "sdist", "debian")
        if getattr(merged.source, kind)
    ]
    lines.append(f"  sources {', '.join(kinds) or 'none: say one with --set source...'}")
    lines.append(f"  environment {merged.environment.use}")
    lines += [f"  option {key} = {value}" for key, value in merged.options.items()]
    lines += [
        f"  component {part.recipe} {part.version} {part.variant}".rstrip()
        for part in merged.components
    ]
    print_data(printable("\n".join(lines)))


def _row(name: object, summary: object, variants: object) -> str:
    text = f"{name:<20} {summary}"
    if isinstance(variants, list) and variants:
        text += f"\n{'':<20} variants: {', '.join(variants)}"
    return printable(text)
