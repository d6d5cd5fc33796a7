"""Programs with waste whose patch keeps the results for all values: it must be proposed."""

from __future__ import annotations

from tests.values.patching.case import START, Register

_register = Register()
_add = _register.add
CASES = _register.cases
_UNINITIALIZED, _DROPPED, _HOISTED = "uninitialized", "dropped-write", "hoisted"

_add(
    "buffer_of_a_function",
    """
    def copied(x):
        buffer = torch.zeros(64, 256)  # a buffer of its own
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.zeros(64, 256)  #", "torch.empty(64, 256)  #"),
    kind=_UNINITIALIZED,
)
_add(
    "call_over_several_lines",
    """
    def copied(x):
        buffer = torch.zeros(
            64,  # rows
            256,
            dtype=torch.float32,
        )
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.zeros(\n", "torch.empty(\n"),
    kind=_UNINITIALIZED,
)
_add(
    "rows_counted_by_a_constant",
    """
    ROWS = 64


    def copied(x):
        buffer = torch.zeros(ROWS, 256)
        for number in range(ROWS):
            buffer[number] = x[number]
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.zeros(ROWS", "torch.empty(ROWS"),
    kind=_UNINITIALIZED,
)
_add(
    "alias_of_torch",
    """
    import torch as t


    def copied(x):
        buffer = t.ones((64, 256), device=x.device)
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("t.ones((64", "t.empty((64"),
    kind=_UNINITIALIZED,
)
_add(
    "function_imported_by_name",
    """
    from torch import Tensor, zeros


    def copied(x: Tensor) -> Tensor:
        buffer = zeros(64, 256)
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("import Tensor, zeros", "import Tensor, empty, zeros"),
    ("buffer = zeros(", "buffer = empty("),
    kind=_UNINITIALIZED,
)
_add(
    "like_another_tensor",
    """
    def copied(x):
        buffer = torch.zeros_like(x)
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.zeros_like(x)", "torch.empty_like(x)"),
    kind=_UNINITIALIZED,
)
_add(
    "method_of_a_tensor",
    """
    def copied(x):
        buffer = x.new_zeros((64, 256))
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("x.new_zeros(", "x.new_empty("),
    kind=_UNINITIALIZED,
)
_add(
    "full_of_a_number",
    """
    def copied(x):
        buffer = torch.full((64, 256), 7.0)
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.full((64, 256), 7.0)", "torch.empty((64, 256))"),
    kind=_UNINITIALIZED,
)
_add(
    "full_of_an_integer",
    """
    def copied(x):
        buffer = torch.full((64, 256), -1)
        buffer.copy_(x.long())
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.full((64, 256), -1)", "torch.empty((64, 256), dtype=torch.int64)"),
    kind=_UNINITIALIZED,
)
_add(
    "full_with_keywords",
    """
    def copied(x):
        buffer = torch.full(size=(64, 256), fill_value=0, dtype=torch.float64)
        buffer.copy_(x)
        return buffer


    print([copied(values(step)).sum().item() for step in range(4)])
    """,
    (
        "torch.full(size=(64, 256), fill_value=0, dtype",
        "torch.empty(size=(64, 256), dtype",
    ),
    kind=_UNINITIALIZED,
)
_add(
    "output_of_an_operator",
    """
    def doubled(x):
        buffer = torch.zeros(64, 256)
        torch.mul(x, 2, out=buffer)
        return buffer


    print([doubled(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.zeros(64", "torch.empty(64"),
    kind=_UNINITIALIZED,
)
_add(
    "both_halves_written",
    """
    def joined(x):
        buffer = torch.zeros(64, 256)
        buffer[:, 0::2] = x[:, :128]
        buffer[:, 1::2] = x[:, 128:]
        return buffer


    print([joined(values(step)).sum().item() for step in range(4)])
    """,
    ("torch.zeros(64", "torch.empty(64"),
    kind=_UNINITIALIZED,
)
_add(
    "fill_before_a_copy",
    """
    buffer = torch.empty(64, 256)
    for step in range(4):
        raw = values(step)
        x = raw + 1
        buffer.zero_()
        buffer.copy_(x)
        print(buffer.sum().item())
    """,
    ("    buffer.zero_()\n", ""),
    kind=_DROPPED,
)
_add(
    "filled_twice",
    """
    def marked(x):
        buffer = torch.zeros(64, 256)
        buffer.zero_()  # again
        buffer[x > 0] = 1
        return buffer


    print([marked(values(step)).sum().item() for step in range(4)])
    """,
    ("    buffer.zero_()  # again\n", ""),
    kind=_DROPPED,
)
_add(
    "multiplied_by_one",
    """
    for step in range(4):
        x = values(step).mul(100).long()
        x.mul_(1)
        print(x.sum().item())
    """,
    ("    x.mul_(1)\n", ""),
    kind=_DROPPED,
)
_add(
    "mask_of_a_loop",
    """
    for step in range(5):
        # Lower triangle.
        mask = torch.ones(256, 256).tril()
        x = values(step)
        print((x @ mask).sum().item())
    """,
    (
        """for step in range(5):
    # Lower triangle.
    mask = torch.ones(256, 256).tril()
""",
        """# Lower triangle.
mask = torch.ones(256, 256).tril()
for step in range(5):
""",
    ),
    kind=_HOISTED,
)
_add(
    "table_of_constants_in_a_function",
    """
    LENGTH = 256


    def run():
        total = 0.0
        for step in range(5):
            x = values(step)
            table = torch.sin(
                torch.arange(64 * LENGTH, dtype=torch.float32) / 100
            ).reshape(64, LENGTH)
            total += (x * table).sum().item()
        return total


    print(run())
    """,
    (
        """    for step in range(5):
        x = values(step)
        table = torch.sin(
            torch.arange(64 * LENGTH, dtype=torch.float32) / 100
        ).reshape(64, LENGTH)
""",
        """    table = torch.sin(
        torch.arange(64 * LENGTH, dtype=torch.float32) / 100
    ).reshape(64, LENGTH)
    for step in range(5):
        x = values(step)
""",
    ),
    kind=_HOISTED,
)
_add(
    "frozen_table_of_training",
    """
    net = torch.nn.Linear(256, 64)
    optimizer = torch.optim.Adam(net.parameters())
    prototypes = torch.randn(64, 512)
    for step in range(6):
        centred = prototypes - prototypes.mean(0)
        loss = (net(values(step)) @ centred).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
    """,
    (
        "for step in range(6):\n    centred = prototypes - prototypes.mean(0)\n",
        "centred = prototypes - prototypes.mean(0)\nfor step in range(6):\n",
    ),
    kind=_HOISTED,
)
_add(
    "gradients_zeroed",
    """
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)
        net(values(step)).pow(2).mean().backward()
        optimizer.step()
        if step % 2:
            print(net(values(step)).sum().item())
    """,
    ("set_to_none=False", "set_to_none=True"),
    kind="set-to-none",
)
_add(
    "table_with_few_rows_in_use",
    """
    table = torch.nn.Embedding(
        4000,
        32,
    )
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        table(torch.randperm(4000)[:64]).pow(2).mean().backward()
        optimizer.step()
    print(sum(one.sum().item() for one in table.parameters()))
    """,
    (
        "        32,\n    )".replace("        ", "    ").replace("\n    )", "\n)"),
        "    32, sparse=True,\n)",
    ),
    kind="sparse-gradient",
    classes=("sparse-gradient",),
)
_add(
    "mask_that_is_a_factor",
    """
    for step in range(4):
        x = values(step)
        mask = (x > 0).float()
        print((x * mask).sum().item(), (x.exp() * mask).sum().item())
    """,
    (".float()", ""),
    kind="narrower-type",
    classes=("narrower-type",),
)
assert all(case.source.startswith(START) for case in CASES)
