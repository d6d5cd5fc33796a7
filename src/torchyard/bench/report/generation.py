"""Text generation in the numbers that people compare: time to the first token, time per token, tokens per second.

They follow from the times of the phases `prefill` and `decode` of one workload. Decoding is timed for the first token
after the prompt; with a static cache all tokens take this long, with a dynamic one later tokens take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchyard.core.comparison import WITHOUT_SPEED, Comparison, VariantMetrics, Verdict
from torchyard.core.study import PHASES, Workload
from torchyard.core.units import format_bytes, format_duration, format_energy
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import verdict_text
from torchyard.worker.catalog.entry import GENERATION

HEADINGS = ("first token", "per token", "tokens/s", "whole text", "memory")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One variant of one generating workload. None: the phase was not measured or must not be used."""

    workload: Workload
    variant: str
    batch_size: int
    prefill: VariantMetrics | None = None
    decode: VariantMetrics | None = None
    doubts: tuple[Verdict, ...] = ()
    """`untrusted`, `wrong` or `failed` phases."""
    price_per_hour: float | None = None

    @property
    def title(self) -> str:
        """Name and device."""
        name = f"{self.workload.suite}/{self.workload.name}"
        return name if self.workload.device == "cpu" else f"{name} {self.workload.device}"

    @property
    def heading(self) -> str:
        """Name, lengths and batch size."""
        return (
            f"{self.title}: {self.prompt} tokens of prompt, {self.generate} generated, "
            f"batch size {self.batch_size}"
        )

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return int(dict(self.workload.parameters).get("prompt", GENERATION["prompt"]))

    @property
    def generate(self) -> int:
        """Generated tokens."""
        return int(dict(self.workload.parameters).get("generate", GENERATION["generate"]))

    @property
    def first_token_ns(self) -> float | None:
        """Time to the first token: the prompt is read, and its last logits give the token."""
        return None if self.prefill is None else self.prefill.time_ns

    @property
    def per_token_ns(self) -> float | None:
        """Time of each further token of all texts of the batch."""
        return None if self.decode is None else self.decode.time_ns

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of all texts of the batch per second of decoding."""
        return self.batch_size * 1e9 / self.per_token_ns if self.per_token_ns else None

    @property
    def text_ns(self) -> float | None:
        """Time of the whole text."""
        if self.first_token_ns is None or self.per_token_ns is None:
            return None
        return self.first_token_ns + (self.generate - 1) * self.per_token_ns

    @property
    def energy_per_token_j(self) -> float | None:
        """Energy of one token of one text."""
        if self.decode is None or self.decode.energy_j is None:
            return None
        return self.decode.energy_j / self.batch_size

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Cost of a million tokens in whole texts, in the currency of the price."""
        if self.price_per_hour is None or self.text_ns is None:
            return None
        text_cost = self.price_per_hour * self.text_ns / 3600e9
        return text_cost * 1e6 / (self.generate * self.batch_size)

    def cells(self) -> list[str]:
        """Return the texts for `HEADINGS`."""
        bytes_used = max(
            (m.peak_memory_bytes or 0 for m in (self.prefill, self.decode) if m), default=0
        )
        doubt = (
            " and ".join(dict.fromkeys(verdict_text(one) for one in self.doubts)) or "unavailable"
        )
        return [
            doubt if self.first_token_ns is None else format_duration(self.first_token_ns),
            doubt if self.per_token_ns is None else format_duration(self.per_token_ns),
            "" if self.tokens_per_s is None else f"{self.tokens_per_s:.4g}",
            "" if self.text_ns is None else format_duration(self.text_ns),
            format_bytes(bytes_used) if bytes_used else "",
        ]

    def document(self) -> dict[str, object]:
        """Return the row for JSON."""
        return {
            "workload": self.title,
            "variant": self.variant,
            "batch_size": self.batch_size,
            "prompt": self.prompt,
            "generate": self.generate,
            "time_to_first_token_ns": self.first_token_ns,
            "time_per_token_ns": self.per_token_ns,
            "tokens_per_s": self.tokens_per_s,
            "text_ns": self.text_ns,
            "energy_per_token_j": self.energy_per_token_j,
            "cost_per_million_tokens": self.cost_per_million_tokens,
            "doubts": [one.value for one in self.doubts],
        }


def generations(
    comparisons: Sequence[Comparison], *, price_per_hour: float | None = None
) -> list[Generation]:
    """Return a row for each variant of a workload with at least one phase that may be used."""
    rows: dict[tuple[Workload, str], Generation] = {}
    for one in comparisons:
        if one.workload.mode not in PHASES:
            continue
        for name, metrics in (
            (one.baseline, one.baseline_metrics),
            (one.candidate, one.candidate_metrics),
        ):
            key = (replace(one.workload, mode="inference"), name)
            row = rows.get(key) or Generation(
                workload=key[0],
                variant=name,
                batch_size=metrics.batch_size or one.workload.batch_size or 1,
                price_per_hour=price_per_hour,
            )
            if one.state in WITHOUT_SPEED:
                row = replace(row, doubts=(*row.doubts, one.state))
            elif one.workload.mode == "prefill":
                row = replace(row, prefill=row.prefill or metrics)
            else:
                row = replace(row, decode=row.decode or metrics)
            rows[key] = row
    return [row for row in rows.values() if row.prefill is not None or row.decode is not None]


def generation_lines(
    comparisons: Sequence[Comparison], *, price_per_hour: float | None = None
) -> list[str]:
    """Return the rows as text, grouped by workload."""
    rows = generations(comparisons, price_per_hour=price_per_hour)
    lines: list[str] = []
    previous = None
    for row in rows:
        if row.workload != previous:
            lines.append(one_line(row.heading))
            previous = row.workload
        parts = [f"{name} {text}" for name, text in zip(HEADINGS, row.cells(), strict=True) if text]
        if (energy := row.energy_per_token_j) is not None:
            parts.append(f"{format_energy(energy)} per token")
        if (cost := row.cost_per_million_tokens) is not None:
            parts.append(f"{cost:.3g} per million tokens")
        lines.append(f"  {one_line(row.variant)}: {', '.join(parts)}")
    return lines
