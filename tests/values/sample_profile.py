"""A value profile made by hand: a small training step with every certainty and most patterns."""

from __future__ import annotations

from random import Random
from typing import Any

from torchyard.core.comparison import Interval
from torchyard.values.model import (
    Certainty,
    FlowEdge,
    FlowGraph,
    FlowNode,
    Place,
    Proof,
    ProofTest,
    Saving,
    SourceExcerpt,
    ValueFinding,
    ValueProfile,
    Worth,
)

TRAIN = "/home/someone/project/train.py"
MODEL = "/opt/venv/lib/python3.12/site-packages/modelkit/layers.py"
MIB = 1 << 20

SOURCE = (
    "    for batch, target in loader:",
    "        optimizer.zero_grad(set_to_none=False)",
    "        output = model(batch.to(device))",
    "        loss = F.mse_loss(output, target)",
    '        if "<b>" in log and loss < best & better:',
    "        loss.backward()",
    "        optimizer.step()",
)
LAYERS = (
    "    def forward(self, x):",
    "        q, k, v = self.qkv(x).chunk(3, dim=-1)",
    "        mask = torch.ones(x.shape[1], x.shape[1]).tril()",
    "        return self.out(attend(q, k, v, mask))",
)


STEP_NS = 42e6


def place(line: int, module: str = "", *, file: str = TRAIN, backward: bool = False) -> Place:
    function = "forward" if module else "main"
    return Place(file=file, line=line, function=function, module=module, backward=backward)


def sample_flow(layers: int = 3) -> FlowGraph:
    """Forward, loss, backward and optimiser of a few layers."""
    nodes: list[FlowNode] = []
    edges: list[FlowEdge] = []

    def node(
        operator: str, where: Place, size: int, *writers: int, path: tuple[str, ...] = ()
    ) -> int:
        number = len(nodes)
        nodes.append(
            FlowNode(
                id=number,
                operator=f"aten::{operator}",
                place=where,
                path=path,
                calls=4,
                written_bytes=4 * size,
            )
        )
        edges.extend(FlowEdge(writer=w, reader=number, count=4, bytes=4 * size) for w in writers)
        return number

    x = node("zero_", place(21), 3 * MIB, -1)
    first = x = node("embedding", place(40, "embed", file=MODEL), 2 * MIB, -1)
    saved = []
    for layer in range(layers):
        name = f"layers.{layer}"
        qkv = node("addmm", place(12, f"{name}.attn", file=MODEL), 6 * MIB, x)
        mask = node("tril", place(13, f"{name}.attn", file=MODEL), MIB, -1)
        attended = node("bmm", place(14, f"{name}.attn", file=MODEL), 4 * MIB, qkv, mask)
        out = node("relu", place(31, f"{name}.mlp", file=MODEL), 8 * MIB, attended)
        x = node("add", place(33, name, file=MODEL), 2 * MIB, out, x)
        saved.append((qkv, attended, out))
    loss = node("mse_loss", place(23), 64, x, -1)
    grad = node("mse_loss_backward", place(23, backward=True), 2 * MIB, loss, x)
    node(
        "zero_",
        place(23, backward=True),
        2 * MIB,
        path=("aten::mse_loss_backward", "aten::zeros_like"),
    )
    for layer in reversed(range(layers)):
        qkv, attended, out = saved[layer]
        name = f"layers.{layer}"
        grad = node(
            "threshold_backward",
            place(31, f"{name}.mlp", file=MODEL, backward=True),
            8 * MIB,
            grad,
            out,
        )
        left = node("bmm", place(14, f"{name}.attn", file=MODEL, backward=True), 4 * MIB, grad, qkv)
        grad = node(
            "select_backward",
            place(12, f"{name}.attn", file=MODEL, backward=True),
            6 * MIB,
            left,
            attended,
        )
    table = node(
        "embedding_dense_backward", place(40, "embed", file=MODEL, backward=True), 24 * MIB, grad
    )
    step = node("_fused_adamw_", place(26), 72 * MIB, table, grad)
    edges.append(FlowEdge(writer=step, reader=first, count=3, bytes=72 * MIB))
    classes = {"embed": "Embedding", "layers.0.attn": "Attention", "layers.1.attn": "Attention"}
    return FlowGraph(nodes=tuple(nodes), edges=tuple(edges), classes=classes)


def histogram(*counts: int, low: float = -1.0, high: float = 1.0) -> dict[str, Any]:
    return {"low": low, "high": high, "counts": list(counts)}


def proven(*, inside: bool = True) -> Proof:
    tests = [ProofTest(test="same again", passed=True, inputs="the program's own")]
    tests += [
        ProofTest(test="poison", passed=True, inputs=inputs, poison=poison)
        for inputs in ("the program's own", "random")
        for poison in ("NaN", "a huge number", "random bits")
    ]
    if inside:
        chain = "aten::mse_loss_backward > aten::zeros_like > aten::zero_: 1 times"
        tests.append(ProofTest(test="native operator", passed=True, detail=chain))
    known = "4 of 4 calls: its kernel is elementwise and writes every element of the gradient"
    tests.append(ProofTest(test="semantics", passed=True, detail=known))
    tests.append(ProofTest(test="native program", passed=True, detail="seen 4 times"))
    return Proof(
        certainty=Certainty.PROVEN,
        why=f"for every input of these shapes: {known}",
        tests=tuple(tests),
    )


def saving(low_ns: float, high_ns: float, *, bound: float | None = None, **more: Any) -> Saving:
    """Of a step of 42 ms."""
    return Saving(
        low_ns=low_ns,
        high_ns=high_ns,
        low_share=low_ns / STEP_NS,
        high_share=high_ns / STEP_NS,
        bound_ns=bound,
        bound_share=None if bound is None else bound / STEP_NS,
        clock="CPU time",
        **{"calls": 1.0, **more},
    )


def sample_findings() -> tuple[ValueFinding, ...]:
    steps = (1, 2, 3, 4)
    return (
        ValueFinding(
            pattern="dead initialisation",
            operator="aten::zero_",
            path=("aten::mse_loss_backward", "aten::zeros_like"),
            overload="aten.zero_.default",
            place=place(23, backward=True),
            count=4,
            steps=steps,
            shape=(64, 8192),
            dtype="float32",
            bytes_wasted=8 * MIB,
            bytes_written=8 * MIB,
            detail="filled with zeros, and every element was written before any was read",
            evidence={
                "zero_share": 1.0,
                "sample": [0.0] * 12,
                "range": [0.0, 0.0],
                "distinct": 1,
                "sampled": 4096,
                "overwritten_by": {
                    "operator": "aten::mse_loss_backward",
                    "file": TRAIN,
                    "line": 23,
                    "backward": True,
                },
            },
            proof=proven(),
            worth=Worth(
                operator_ns=1.9e6,
                wasted_ns=0.34e6,
                per_step_ns=0.34e6,
                share_of_step=0.0081,
                saving=saving(0.3e6, 0.38e6, bound=0.5e6),
                gain=1.208,
                gain_interval=Interval(low=1.19, high=1.226),
                method="the fill alone, on the same bytes, median of 31",
            ),
            node=19,
        ),
        ValueFinding(
            pattern="dead initialisation",
            operator="aten::zero_",
            overload="aten.zero_.default",
            place=place(21),
            count=196,
            steps=(1, 2, 3, 4),
            shape=(64, 256),
            dtype="float32",
            bytes_wasted=288 * MIB,
            bytes_written=144 * MIB,
            detail="gradient zeroed only to be added to: the result is the new gradient",
            evidence={"zero_share": 1.0},
            proof=Proof(
                certainty=Certainty.PROVEN,
                why="replaced, no result changed, on 2 inputs of these shapes and settings",
                tests=(ProofTest(test="replace", passed=True, inputs="random"),),
            ),
            worth=Worth(
                per_step_ns=3.9e6,
                share_of_step=0.0929,
                wasted_ns=8e4,
                operator_ns=8e4,
                saving=saving(0.0, 7.8e6, bound=8.1e6, calls=98.0),
            ),
            node=0,
        ),
        ValueFinding(
            pattern="sparse gradient",
            operator="aten::embedding_dense_backward",
            overload="aten.embedding_dense_backward.default",
            place=place(40, "embed", file=MODEL, backward=True),
            modules={"embed": 4},
            count=4,
            steps=steps,
            shape=(50257, 128),
            dtype="float32",
            bytes_wasted=92 * MIB,
            bytes_written=96 * MIB,
            detail="1907 of 50257 rows have a gradient",
            evidence={
                "zero_share": 0.962,
                "zero_rows": 0.962,
                "sample": [0.0, 0.0, -0.0031, 0.0, 0.0, 0.0, 0.00018, 0.0],
                "range": [-0.0213, 0.0194],
                "distinct": 155,
                "sampled": 4096,
                "histogram": histogram(1, 3, 9, 21, 3940, 60, 33, 20, 9, low=-0.0213, high=0.0194),
            },
            worth=Worth(
                per_step_ns=1.6e6,
                share_of_step=0.0381,
                saving=saving(0.0, 3.2e6, unpriced=("aten::_fused_adamw_",)),
            ),
            node=29,
        ),
        ValueFinding(
            pattern="unchanged across steps",
            operator="aten::tril",
            overload="aten.tril.default",
            place=place(13, "layers.0.attn", file=MODEL),
            modules={f"layers.{number}.attn": 4 for number in range(3)},
            count=12,
            steps=steps,
            shape=(512, 512),
            dtype="float32",
            bytes_wasted=12 * MIB,
            bytes_written=12 * MIB,
            detail="the same bits in each of 3 steps and more",
            evidence={
                "zero_share": 0.499,
                "sample": [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0],
                "range": [0.0, 1.0],
                "distinct": 2,
                "sampled": 4096,
                "histogram": histogram(2043, *[0] * 14, 2053, low=0.0, high=1.0),
            },
            worth=Worth(unavailable="noisy machine: repeats differ by a factor of 3.1"),
            node=3,
        ),
        ValueFinding(
            pattern="duplicate",
            operator="aten::tril",
            overload="aten.tril.default",
            place=place(13, "layers.1.attn", file=MODEL),
            modules={"layers.1.attn": 4, "layers.2.attn": 4},
            count=8,
            steps=steps,
            shape=(512, 512),
            dtype="float32",
            bytes_wasted=8 * MIB,
            bytes_written=8 * MIB,
            detail="the same bits as aten::tril computed before",
            evidence={
                "first": {"operator": "aten::tril", "file": MODEL, "line": 13, "backward": False}
            },
            worth=Worth(unavailable="a step without the profiler was not timed"),
            node=8,
        ),
        ValueFinding(
            pattern="redundant write",
            operator="aten::masked_fill_",
            overload="aten.masked_fill_.Scalar",
            place=place(25),
            count=3,
            steps=(1, 2, 4),
            shape=(64, 12, 512),
            dtype="bfloat16",
            bytes_wasted=3 * MIB,
            bytes_written=3 * MIB,
            detail="all elements kept their bits",
            evidence={"unchanged_share": 1.0, "sample": ["nan", 3, "-inf", 0.25]},
            proof=Proof(
                certainty=Certainty.INPUT_DEPENDENT,
                why="needed for: random",
                tests=(
                    ProofTest(test="skip", passed=True, inputs="the program's own"),
                    ProofTest(test="skip", passed=False, inputs="random", detail="2 of 3 differ"),
                    ProofTest(test="refused", passed=False, inputs="large", detail="IndexError"),
                ),
            ),
        ),
    )


def sample_profile(**changes: Any) -> ValueProfile:
    fields: dict[str, Any] = {
        "format": 1,
        "state": "finished",
        "torch": "2.13.0+cpu",
        "program": ("train.py", "--epochs", "1", "--name", "two words"),
        "exit_code": 0,
        "threads": 2,
        "options": {
            "deep": True,
            "every": 2,
            "first_steps": 1,
            "least_bytes": 4096,
            "memory_bytes": 256 * MIB,
            "prove": True,
            "graph": True,
        },
        "steps": 10,
        "seconds": 12.25,
        "step_ns": STEP_NS,
        "saving": saving(0.3e6, 11.4e6, calls=100.0),
        "counts": {
            "operators": 11390,
            "written_bytes": 1200 * MIB,
            "small_bytes": 2 * MIB,
            "not_compared_bytes": 5 * MIB,
            "not_strided": 4,
            "steps_left_out": 5,
        },
        "findings": sample_findings(),
        "flow": sample_flow(),
        "excerpts": (
            SourceExcerpt(file=TRAIN, first_line=20, lines=SOURCE),
            SourceExcerpt(file=MODEL, first_line=11, lines=LAYERS),
        ),
        "notes": ("torch.compile was disabled: the eager program was profiled",),
    }
    return ValueProfile(**{**fields, **changes})


def large_flow(nodes: int = 10_000, edges: int = 20_000, seed: int = 7) -> FlowGraph:
    """A flow like that of a deep model: mostly chains, some long flows, some of the step before."""
    random = Random(seed)
    pairs = {(random.randrange(max(0, i - 30), i), i) for i in range(1, nodes)}
    while len(pairs) < edges:
        writer = random.randrange(nodes - 1)
        reader = random.randrange(nodes) if random.random() < 0.05 else writer + 1
        reader = min(nodes - 1, reader + random.randrange(20))
        if writer != reader:
            pairs.add((writer, reader))
    return FlowGraph(
        nodes=tuple(
            FlowNode(
                id=number,
                operator=f"aten::operator_{number % 97}",
                place=Place(
                    file=f"/home/someone/package/file_{number % 40}.py",
                    line=number % 500 + 1,
                    function="forward",
                    module=f"encoder.layers.{number // 120}.block_{number % 5}",
                    backward=number > nodes // 2,
                ),
                calls=random.randrange(1, 50),
                written_bytes=int(1e9 * random.paretovariate(1.1)) % (1 << 32),
            )
            for number in range(nodes)
        ),
        edges=tuple(
            FlowEdge(writer=writer, reader=reader, count=3, bytes=random.randrange(1 << 28))
            for writer, reader in sorted(pairs)
        ),
    )
