"""Programs in which a tensor is kept, or an optimizer is made, in a way that hides behind ordinary syntax."""

from __future__ import annotations

from tests.values.patching.case import Register

_register = Register()
_add = _register.add
CASES = _register.cases
_NONE = ("set_to_none=False", "set_to_none=True")
_LOOP = "for step in range(5):"
_MASK = "mask = torch.ones(256, 256).tril()"
_HOISTED = ((f"{_LOOP}\n", f"{_MASK}\n{_LOOP}\n"), (f"    {_MASK}\n    x = ", "    x = "))
_BRANCHES = """
    from functools import partial

    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    {optimizers}
    for step in range(6):
        x = values(step)
        for one in optimizers:
            one.zero_grad(set_to_none=False)
        layer = second if OTHER and step % 2 else first
        (layer(x) + (0 if OTHER else second(x))).pow(2).mean().backward()
        for one in optimizers:
            one.step()
    print(first.weight.sum().item(), second.weight.sum().item())
    """
for _name, _optimizers in (
    (
        "partial",
        (
            "make = partial(torch.optim.Adam, lr=0.01)\n"
            "    optimizers = torch.optim.SGD(first.parameters(), 0.1), make(second.parameters())"
        ),
    ),
    (
        "table",
        (
            "kinds = {'adam': torch.optim.Adam}\n"
            "    other = kinds['adam'](second.parameters(), lr=0.01)\n"
            "    optimizers = [torch.optim.SGD(first.parameters(), 0.1), other]"
        ),
    ),
    (
        "variable",
        (
            "kind = torch.optim.RMSprop\n"
            "    optimizers = [torch.optim.SGD(first.parameters(), 0.1), kind(second.parameters(), 0.01)]"
        ),
    ),
):
    _add(
        f"other_optimizer_from_a_{_name}",
        _BRANCHES.format(optimizers=_optimizers),
        _NONE,
    )
_add(
    "settings_of_the_optimizer_from_a_file",
    """
    import json
    from pathlib import Path

    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    settings = json.loads(Path(__file__).with_name("settings.json").read_text())
    groups = [dict(params=list(one.parameters()), **settings) for one in (first, second)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for step in range(6):
        x = values(step)
        optimizer.zero_grad(set_to_none=False)
        layer = second if OTHER and step % 2 else first
        (layer(x) + (0 if OTHER else second(x))).pow(2).mean().backward()
        optimizer.step()
    print(first.weight.sum().item(), second.weight.sum().item())
    """,
    _NONE,
    files={"settings.json": '{"weight_decay": 0.1}'},
)
_add(
    "mask_whose_rows_are_collected",
    f"""
    rows = []
    {_LOOP}
        {_MASK}
        x = values(step)
        rows += mask
        rows[-1].mul_(0.5 if OTHER else 1.0)
        print((x @ mask).sum().item())
    """,
    *_HOISTED,
)
_add(
    "mask_kept_by_an_operator_of_the_program",
    f"""
    class Log:
        def __init__(self):
            self.kept = []

        def __matmul__(self, other):
            self.kept.append(other)
            return self


    log = Log()
    {_LOOP}
        {_MASK}
        x = values(step)
        print((x @ mask).sum().item())
        log @ mask
        if unusual(x):
            log.kept[0].zero_()
    """,
    *_HOISTED,
)
_add(
    "mask_as_a_key",
    f"""
    seen = {{}}
    {_LOOP}
        {_MASK}
        x = values(step)
        seen[mask] = step
        print((x @ mask).sum().item(), len(seen))
    """,
    *_HOISTED,
)
_add(
    "mask_multiplied_with_a_number",
    """
    scale = 0.1
    for step in range(4):
        x = values(step).double()
        mask = (x > 0).double()
        kept, scaled = x * mask, (mask * scale)
        print(kept.sum().item(), scaled.sum().item())
    """,
    (".double()\n    kept", "\n    kept"),
    classes=("narrower-type",),
)
