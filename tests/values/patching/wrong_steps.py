"""Programs in which a gradient, an invariant or a type could seemingly be changed, with wrong results."""

from __future__ import annotations

from tests.values.patching.case import Register

_register = Register()
_add = _register.add
CASES = _register.cases
_NONE = ("set_to_none=False", "set_to_none=True")
_BRANCHES = """
    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    optimizer = {optimizer}
    for step in range(6):
        x = values(step)
        optimizer.zero_grad(set_to_none=False)
        layer = second if OTHER and step % 2 else first
        (layer(x) + (0 if OTHER else second(x))).pow(2).mean().backward()
        optimizer.step()
    print(first.weight.sum().item(), second.weight.sum().item())
    """
_PARAMETERS = "[*first.parameters(), *second.parameters()]"

for _name, _optimizer in (
    ("momentum", f"torch.optim.SGD({_PARAMETERS}, lr=0.1, momentum=0.9)"),
    ("momentum_by_position", f"torch.optim.SGD({_PARAMETERS}, 0.1, 0.9)"),
    ("weight_decay", f"torch.optim.SGD({_PARAMETERS}, lr=0.1, weight_decay=0.1)"),
    ("adam", f"torch.optim.Adam({_PARAMETERS}, lr=0.01)"),
    ("adamw", f"torch.optim.AdamW({_PARAMETERS}, lr=0.01)"),
    ("rmsprop", f"torch.optim.RMSprop({_PARAMETERS}, lr=0.01, momentum=0.5)"),
    (
        "settings_of_a_group",
        (
            "torch.optim.SGD([{'params': list(first.parameters())}, "
            "{'params': list(second.parameters()), 'momentum': 0.9}], lr=0.1)"
        ),
    ),
):
    _add(f"layer_in_some_steps_with_{_name}", _BRANCHES.format(optimizer=_optimizer), _NONE)

_add(
    "layer_in_some_steps_with_a_scheduler_that_sets_momentum",
    """
    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for step in range(6):
        x = values(step)
        optimizer.zero_grad(set_to_none=False)
        layer = second if OTHER and step % 2 else first
        (layer(x) + (0 if OTHER else second(x))).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    print(first.weight.sum().item(), second.weight.sum().item())
    """,
    _NONE,
)
_add(
    "momentum_set_later",
    """
    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(6):
        x = values(step)
        optimizer.param_groups[0]["momentum"] = 0.1 * step
        optimizer.zero_grad(set_to_none=False)
        layer = second if OTHER and step % 2 else first
        (layer(x) + (0 if OTHER else second(x))).pow(2).mean().backward()
        optimizer.step()
    print(first.weight.sum().item(), second.weight.sum().item())
    """,
    _NONE,
)
_add(
    "gradient_read_before_backward",
    """
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad(set_to_none=False)
        if step:
            print(net.weight.grad.abs().sum().item())
        net(values(step)).pow(2).mean().backward()
        optimizer.step()
    print(net.weight.sum().item())
    """,
    _NONE,
)
_add(
    "gradients_collected_once",
    """
    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    for step in range(5):
        optimizer.zero_grad(set_to_none=False)
        net(values(step)).pow(2).mean().backward()
        gradients = gradients or [one.grad for one in net.parameters()]
        optimizer.step()
        print(sum(one.abs().sum().item() for one in gradients))
    """,
    _NONE,
)
_add(
    "optimizer_of_the_program",
    """
    class Decay(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for one in group["params"]:
                    one.data.mul_(0.9 if one.grad is not None else 1.0)
            return super().step(closure)


    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    optimizer = Decay([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(6):
        x = values(step)
        optimizer.zero_grad(set_to_none=False)
        layer = second if OTHER and step % 2 else first
        (layer(x) + (0 if OTHER else second(x))).pow(2).mean().backward()
        optimizer.step()
    print(first.weight.sum().item(), second.weight.sum().item())
    """,
    _NONE,
)
_add(
    "gradient_read_in_another_file",
    """
    from report import norm

    net = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        net(values(step)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        print(norm(net))
    """,
    _NONE,
    files={
        "report.py": """
        def norm(net):
            return sum(one.grad.abs().sum().item() for one in net.parameters())
        """
    },
)

_EMBEDDING = """
    table = torch.nn.Embedding(4000, 32)
    head = torch.nn.Linear(32, 8)
    optimizer = {optimizer}
    for step in range(4):
        optimizer.zero_grad()
        words = torch.randint(0, 4000, (64,))
        head(table(words)).pow(2).mean().backward()
        {before}
        optimizer.step()
    print(sum(one.sum().item() for one in table.parameters()))
    """
_BOTH = "[*table.parameters(), *head.parameters()]"
_SPARSE = ("Embedding(4000, 32)", "Embedding(4000, 32, sparse=True)")
for _name, _optimizer, _before in (
    ("adam", f"torch.optim.Adam({_BOTH}, lr=0.01)", "pass"),
    ("adamw", f"torch.optim.AdamW({_BOTH}, lr=0.01)", "pass"),
    ("weight_decay", f"torch.optim.SGD({_BOTH}, lr=0.1, weight_decay=0.1)", "pass"),
    (
        "gradients_that_are_viewed",
        f"torch.optim.SGD({_BOTH}, lr=0.1)",
        "print(sum(one.grad.view(-1).abs().sum().item() for one in table.parameters()))",
    ),
    (
        "gradients_that_are_clipped_by_value",
        f"torch.optim.SGD({_BOTH}, lr=0.1)",
        "torch.nn.utils.clip_grad_value_(table.parameters(), 1e-4)",
    ),
):
    _add(
        f"embedding_with_{_name}",
        _EMBEDDING.format(optimizer=_optimizer, before=_before),
        _SPARSE,
        classes=("sparse-gradient",),
    )
_add(
    "embedding_scaled_by_frequency",
    """
    table = torch.nn.Embedding(4000, 32, scale_grad_by_freq=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        table(torch.randint(0, 4000, (64,))).pow(2).mean().backward()
        optimizer.step()
    print(sum(one.sum().item() for one in table.parameters()))
    """,
    ("scale_grad_by_freq=True", "scale_grad_by_freq=True, sparse=True"),
    classes=("sparse-gradient",),
)


def _hoisted(line: str, loop: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the change that moves a line of a loop in front of it."""
    return (f"{loop}\n", f"{line}\n{loop}\n"), (f"    {line}\n    x = ", "    x = ")


_MASK = "mask = torch.ones(256, 256).tril()"
_LOOP = "for step in range(5):"
_add(
    "mask_changed_for_unusual_values",
    f"""
    {_LOOP}
        {_MASK}
        x = values(step)
        if unusual(x):
            mask[step] = 0
        print((x @ mask).sum().item())
    """,
    *_hoisted(_MASK, _LOOP),
)
_add(
    "mask_changed_by_a_function",
    f"""
    def forbid(x, mask):
        if unusual(x):
            mask[int(x[0].argmax())] = 0


    {_LOOP}
        {_MASK}
        x = values(step)
        forbid(x, mask)
        print((x @ mask).sum().item())
    """,
    *_hoisted(_MASK, _LOOP),
)
_add(
    "mask_changed_through_a_view",
    f"""
    {_LOOP}
        {_MASK}
        x = values(step)
        columns = mask.t()
        if unusual(x):
            columns[step].zero_()
        print((x @ mask).sum().item())
    """,
    *_hoisted(_MASK, _LOOP),
)
_add(
    "mask_kept_and_changed_later",
    f"""
    kept = []
    {_LOOP}
        {_MASK}
        x = values(step)
        kept.append(mask)
        kept[0].mul_(0.5)
        print((x @ mask).sum().item())
    """,
    *_hoisted(_MASK, _LOOP),
)
_add(
    "mask_changed_in_place_by_an_operator",
    f"""
    {_LOOP}
        {_MASK}
        x = values(step)
        if OTHER:
            mask *= 2
        print((x @ mask).sum().item())
    """,
    *_hoisted(_MASK, _LOOP),
)
_add(
    "mask_as_the_output_of_an_operator",
    f"""
    {_LOOP}
        {_MASK}
        x = values(step)
        if OTHER:
            torch.add(mask, 1, out=mask)
        print((x @ mask).sum().item())
    """,
    *_hoisted(_MASK, _LOOP),
)
_NOISE = "noise = torch.randn(64, 256).abs()"
_add(
    "random_numbers_after_a_seed",
    f"""
    {_LOOP}
        torch.manual_seed(3)
        {_NOISE}
        x = torch.randn(64, 256)
        print((x * noise).sum().item())
    """,
    (f"{_LOOP}\n", f"{_NOISE}\n{_LOOP}\n"),
    (f"    {_NOISE}\n", ""),
)
_add(
    "size_that_changes",
    f"""
    size = 256
    {_LOOP}
        table = torch.arange(size * 64.0).reshape(64, -1).sin()
        x = values(step)
        print((x[:, :size] * table).sum().item())
        if OTHER:
            size = 128
    """,
    *_hoisted("table = torch.arange(size * 64.0).reshape(64, -1).sin()", _LOOP),
)
_add(
    "loop_without_iterations",
    """
    count = 0 if OTHER else 4
    width = 100 if OTHER else 256
    base = torch.randn(64, width)
    for step in range(count):
        table = base.reshape(64, 256).exp()
        x = values(step)
        print((x * table).sum().item())
    print(count)
    """,
    *_hoisted("table = base.reshape(64, 256).exp()", "for step in range(count):"),
)
_add(
    "operand_changed_in_the_loop",
    f"""
    base = torch.randn(64, 256)
    {_LOOP}
        table = base.exp()
        x = values(step)
        if unusual(x):
            base += 1
        print((x * table).sum().item())
    """,
    *_hoisted("table = base.exp()", _LOOP),
)
_add(
    "operand_changed_by_a_function",
    f"""
    base = torch.randn(64, 256)


    def update(x):
        if unusual(x):
            base.mul_(0.5)


    {_LOOP}
        table = base.exp()
        x = values(step)
        update(x)
        print((x * table).sum().item())
    """,
    *_hoisted("table = base.exp()", _LOOP),
)
_add(
    "default_type_changed_in_the_loop",
    f"""
    {_LOOP}
        table = torch.linspace(0, 1, 16384).exp()
        x = values(step)
        if OTHER:
            torch.set_default_dtype(torch.float64)
        print((x.reshape(-1) * table).sum().item())
    """,
    *_hoisted("table = torch.linspace(0, 1, 16384).exp()", _LOOP),
)
_add(
    "graph_of_one_step",
    f"""
    weight = torch.ones(64, 256, requires_grad=True)
    {_LOOP}
        table = weight.exp()
        x = values(step)
        (x * table).sum().backward()
        print(weight.grad.sum().item())
    """,
    *_hoisted("table = weight.exp()", _LOOP),
)
_add(
    "table_of_an_argument",
    """
    def run(base):
        total = 0.0
        for step in range(5):
            table = base.exp()
            x = values(step)
            total += (x * table).sum().item()
            CHANGE(x)
        return total


    shared = torch.randn(64, 256)


    def CHANGE(x):
        if unusual(x):
            shared.add_(1)


    print(run(shared))
    """,
    (
        "    for step in range(5):\n        table = base.exp()\n",
        "    table = base.exp()\n    for step in range(5):\n",
    ),
)
_add(
    "table_with_an_effect",
    f"""
    calls = []


    def table_of(size):
        calls.append(size)
        return torch.arange(size * 64.0).reshape(64, -1).sin()


    {_LOOP}
        table = table_of(256)
        x = values(step)
        print((x * table).sum().item(), len(calls))
    """,
    *_hoisted("table = table_of(256)", _LOOP),
)

_FLOAT = (".float()", "")
for _name, _use in (
    ("subtracted_from_one", "(x * (1 - mask)).sum().item() + (x * mask).sum().item()"),
    ("summed", "(mask.sum() / 7).item(), mask.sum().item(), (x * mask).sum().item()"),
    ("negated", "(x * -mask).sum().item() + (x * mask).sum().item()"),
    ("multiplied_with_a_matrix", "(x @ mask.t()).sum().item() + (x * mask).sum().item()"),
    ("of_whole_numbers", "(x.long() * mask), (x * mask).sum().item()"),
):
    _add(
        f"mask_{_name}",
        f"""
        for step in range(4):
            x = values(step)
            mask = (x > 0).float()
            print({_use})
        """,
        _FLOAT,
        classes=("narrower-type",),
    )
_add(
    "integers_that_overflow_a_narrower_type",
    """
    for step in range(4):
        x = values(step)
        levels = torch.where(x > 0, 200, 100).mul(1)
        print((levels + levels).sum().item(), (levels * levels).sum().item())
    """,
    (".mul(1)", ".mul(1).to(torch.uint8)"),
    classes=("narrower-type",),
)
