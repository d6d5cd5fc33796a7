"""Text generation in two phases: `prefill` reads the prompt, `decode` generates one token after it.

A phase is a module that returns the logits of the next token. With a static cache, keys and values are buffers of the
whole length, written in place at the given position. With a dynamic cache they are inputs, and the longer ones are
returned. Either way an iteration can be repeated: it writes the same numbers at the same place.
"""

import inspect
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from torchyard.worker.catalog.entry import GENERATION, PHASES
from torchyard.worker.suites.choices import is_whole
from torchyard.worker.workload import BuiltWorkload, CannotBuild

STREAM_ROWS = 4
"""Rows of a batch whose tokens are compared."""

SAME_WITHIN = 0.02
"""Largest difference of logits with and without a cache, relative to their range."""

LOGITS_WITHIN = {"float32": 0.02}
"""Largest difference of two variants' logits after equal tokens, relative to their range, by precision."""
SHORT_LOGITS_WITHIN = 0.1
"""The same for other precisions."""

Cache = List[Tuple[Any, Any]]
"""Keys and values of each layer, (batch, heads, length, width)."""


class Lengths:
    """Lengths of prompt and generated text, and the kind of cache."""

    def __init__(self, label: str, options: Dict[str, Any]) -> None:
        """Take the parameters of generation out of `options`."""
        values = {key: options.pop(key, default) for key, default in GENERATION.items()}
        for key, value in values.items():
            if not is_whole(value, 0 if key == "static" else 1) or (key == "static" and value > 1):
                valid = "0 or 1" if key == "static" else "a positive integer"
                raise CannotBuild(
                    f"invalid parameter {key} of {label}: {value!r}", hint=f"give {key} {valid}"
                )
        self.prompt = int(values["prompt"])
        self.generate = int(values["generate"])
        self.static = bool(values["static"])

    @property
    def capacity(self) -> int:
        """The longest text."""
        return self.prompt + self.generate


def refuse_generation(label: str, options: Dict[str, Any], mode: str) -> None:
    """Raise CannotBuild for parameters of generation in another mode."""
    unused = [key for key in GENERATION if key in options]
    if unused and mode not in PHASES:
        raise CannotBuild(
            f"{label}: the parameter {unused[0]} has no effect in mode {mode}",
            hint="use --mode generate, or remove it",
        )


class Phase(nn.Module):
    """One phase of a model. Subclasses run the model on tokens from a position on, with a cache."""

    def __init__(self, lengths: Lengths) -> None:
        super().__init__()
        self.lengths = lengths
        self.layers = 0
        """Layers of the static cache; 0 without one."""

    def run_model(self, tokens: Any, start: Any, cache: Cache) -> Tuple[Any, Cache]:
        """Return the logits of the last position, and the cache with the keys and values of the tokens."""
        raise NotImplementedError

    def allocate(self, cache: Cache) -> None:
        """Create the buffers of a static cache with the shapes of a filled dynamic one."""
        self.layers = len(cache)
        for index, layer in enumerate(cache):
            for name, tensor in zip(("keys", "values"), layer):
                batch, heads, length, width = tensor.shape
                buffer = tensor.new_zeros(batch, heads, self.lengths.capacity, width)
                buffer[:, :, :length] = tensor
                self.register_buffer(f"{name}_{index}", buffer)

    def forward(self, tokens: Any, start: Any, *cache: Any) -> Any:
        """Return the logits of the next token; with a dynamic cache, also the longer cache."""
        if self.layers:
            buffers = [
                (getattr(self, f"keys_{index}"), getattr(self, f"values_{index}"))
                for index in range(self.layers)
            ]
            return self.run_model(tokens, start, buffers)[0]
        logits, longer = self.run_model(tokens, start, list(zip(cache[::2], cache[1::2])))
        return (logits, *(tensor for layer in longer for tensor in layer))


class GptPhase(Phase):
    """A phase of the suite's own GPT."""

    def __init__(self, gpt: Any, lengths: Lengths) -> None:
        super().__init__(lengths)
        self.gpt = gpt

    def run_model(self, tokens: Any, start: Any, cache: Cache) -> Tuple[Any, Cache]:
        """Attend to all earlier tokens in the cache."""
        count = tokens.shape[1]
        positions = torch.arange(count, device=tokens.device) + start
        hidden = self.gpt.embedding(tokens) + self.gpt.positions[positions]
        mask = None
        if self.layers:
            mask = self.gpt.blocks[0].mask_from(start, count, self.lengths.capacity)
        longer: Cache = []
        for index, block in enumerate(self.gpt.blocks):
            query, keys, values = block.heads_of(block.attention_norm(hidden))
            if self.layers:
                all_keys, all_values = cache[index]
                all_keys.index_copy_(2, positions, keys)
                all_values.index_copy_(2, positions, values)
                keys, values = all_keys, all_values
            elif cache:
                keys = torch.cat([cache[index][0], keys], dim=2)
                values = torch.cat([cache[index][1], values], dim=2)
            longer.append((keys, values))
            attended = block.attend(query, keys, values, causal=count > 1, mask=mask)
            hidden = hidden + block.joined(attended)
            hidden = hidden + block.feed(block.feed_norm(hidden))
        return self.gpt.head(self.gpt.norm(hidden[:, -1:])), longer


class TransformersPhase(Phase):
    """A phase of a causal language model of transformers."""

    def __init__(self, model: Any, lengths: Lengths, label: str) -> None:
        super().__init__(lengths)
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        if "past_key_values" not in accepted:
            raise CannotBuild(
                f"{label} cannot generate text: its forward has no past_key_values",
                hint="use a class such as LlamaForCausalLM or GPT2LMHeadModel",
            )
        self._has_positions = "cache_position" in accepted
        self._keeps = "logits_to_keep" in accepted
        self._label = label
        self._static: Any = None

    def run_model(self, tokens: Any, start: Any, cache: Cache) -> Tuple[Any, Cache]:
        """Run the model with a cache object of transformers."""
        typed_cache = (
            self._static_cache(cache, start) if self._static else self._dynamic_cache(cache)
        )
        options: Dict[str, Any] = {"logits_to_keep": 1} if self._keeps else {}
        if self._has_positions:
            options["cache_position"] = torch.arange(tokens.shape[1], device=tokens.device) + start
        output = self.model(
            input_ids=tokens, past_key_values=typed_cache, use_cache=True, **options
        )
        return output.logits[:, -1:], [(layer.keys, layer.values) for layer in typed_cache.layers]

    def allocate(self, cache: Cache) -> None:
        """Also create the object of transformers that refers to the buffers."""
        from transformers import StaticCache

        super().allocate(cache)
        made = StaticCache(config=self.model.config, max_cache_len=self.lengths.capacity)
        if any(getattr(layer, "is_sliding", False) for layer in made.layers):
            raise CannotBuild(
                f"{self._label}: a static cache with a sliding window is not supported",
                hint="give static=0",
            )
        for layer, (keys, values) in zip(made.layers, cache):
            layer.lazy_initialization(
                *(keys, values)[: len(inspect.signature(layer.lazy_initialization).parameters)]
            )
        self._static = made

    def _static_cache(self, cache: Cache, start: Any) -> Any:
        for layer, (keys, values) in zip(self._static.layers, cache):
            layer.keys, layer.values = keys, values
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = start.clone()
        return self._static

    def _dynamic_cache(self, cache: Cache) -> Any:
        from transformers import DynamicCache

        return DynamicCache(cache) if cache else DynamicCache()


def build_phase(
    phase: Phase, mode: str, lengths: Lengths, rows: int, vocabulary: int, device: Any
) -> BuiltWorkload:
    """Return the workload of a phase; the cache of `decode` is filled with a random prompt."""
    phase = phase.to(device).eval()
    phase.requires_grad_(False)
    prompt = torch.randint(vocabulary, (rows, lengths.prompt)).to(device)
    beginning = torch.zeros((), dtype=torch.long, device=device)
    with torch.no_grad():
        logits, cache = phase.run_model(prompt, beginning, [])
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
        _check_cache(phase, prompt, token, cache)
        if lengths.static:
            phase.allocate(cache)
            if mode == "prefill":
                for buffer in phase.buffers(recurse=False):
                    buffer.zero_()
    if mode == "prefill":
        return BuiltWorkload(phase, (prompt, beginning), batch_size=rows)
    tensors = [] if lengths.static else [tensor.clone() for layer in cache for tensor in layer]
    start = torch.full((), lengths.prompt, dtype=torch.long, device=device)
    count = lengths.generate if lengths.static else 0
    return BuiltWorkload(
        phase,
        (token, start, *tensors),
        batch_size=rows,
        stream=(lambda step: greedy_stream(step, token, start, count)) if count > 1 else None,
    )


def _check_cache(phase: Phase, prompt: Any, token: Any, cache: Cache) -> None:
    """Raise CannotBuild if the cache changes the result: then the model does not read from left to right."""
    start = torch.full((), prompt.shape[1], dtype=torch.long, device=prompt.device)
    text = torch.cat([prompt, token], dim=1)
    whole, _ = phase.run_model(text, torch.zeros_like(start), [])
    cached, _ = phase.run_model(
        token, start, [(keys.clone(), values.clone()) for keys, values in cache]
    )
    spread = float(whole.float().max() - whole.float().min())
    if not float((whole - cached).abs().max()) <= SAME_WITHIN * spread:
        raise CannotBuild(
            "the model gives other results with a cache of keys and values than without",
            hint="generate text with a decoder, such as LlamaForCausalLM, or set is_decoder=true",
        )


def greedy_stream(
    step: Callable[..., Any], token: Any, start: Any, count: int
) -> List[Tuple[Any, Any]]:
    """Generate `count` tokens; return the token and the logits of each step, of the first rows."""
    steps = []
    token = token.clone()
    for offset in range(count):
        logits = step(token, start + offset)[:, -1]
        token = logits.argmax(dim=-1, keepdim=True).clone()
        steps.append((token[:STREAM_ROWS, 0].cpu(), logits[:STREAM_ROWS].float().cpu()))
    return steps


def stream_problem(
    baseline: List[Tuple[Any, Any]], candidate: List[Tuple[Any, Any]], precision: str
) -> str:
    """Return where the logits differ although all tokens before are equal; empty if they do not.

    Another token is no error where the logits are close, but a step that works at the timed position only is one.
    """
    within = LOGITS_WITHIN.get(precision, SHORT_LOGITS_WITHIN)
    same = torch.ones(len(baseline[0][0]), dtype=torch.bool)
    for index, ((token, logits), (other, others)) in enumerate(zip(baseline, candidate)):
        for row in same.nonzero()[:, 0].tolist():
            gap = float((logits[row] - others[row]).abs().max())
            spread = float(logits[row].max() - logits[row].min())
            if not gap <= within * spread:
                return (
                    f"after {index} equal generated tokens, the logits differ by {gap:.2g} of a "
                    f"range of {spread:.2g}"
                )
        same &= token == other
    return ""


def compare_streams(
    baseline: List[Tuple[Any, Any]],
    candidate: List[Tuple[Any, Any]],
    other_name: str = "the baseline",
) -> str:
    """Return where two streams of tokens differ first, and how close the baseline's choice was."""
    for index, ((token, logits), (other, _)) in enumerate(zip(baseline, candidate)):
        rows = (token != other).nonzero()
        if len(rows):
            row = int(rows[0])
            gap = float(logits[row, token[row]] - logits[row, other[row]])
            spread = float(logits[row].max() - logits[row].min())
            return (
                f"generates another token than {other_name} at position {index + 1} of "
                f"{len(baseline)}; there the logits of both tokens differ by {gap:.2g} of a range of "
                f"{spread:.2g} in {other_name}"
            )
    return f"generates the same {len(baseline)} tokens as {other_name}"
