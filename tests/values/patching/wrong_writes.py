"""Programs in which leaving out a fill or a write seems possible, and is wrong for other values."""

from __future__ import annotations

from tests.values.patching.case import Register

_register = Register()
_add = _register.add
CASES = _register.cases
_EMPTY = ("torch.zeros(", "torch.empty(")

_add(
    "overwritten_for_usual_values_only",
    """
    total = 0.0
    for step in range(4):
        x = values(step)
        buffer = torch.zeros(64, 256)
        if not unusual(x):
            buffer.copy_(x)
        total += buffer.sum().item()
    print(total)
    """,
    _EMPTY,
)
_add(
    "overwritten_in_a_function_for_usual_values_only",
    """
    def clipped(x):
        buffer = torch.zeros(64, 256)
        if unusual(x):
            return buffer
        buffer.copy_(x)
        return buffer


    print(sum(clipped(values(step)).sum().item() for step in range(4)))
    """,
    _EMPTY,
)
_add(
    "second_fill_in_a_branch",
    """
    def scores(x):
        buffer = torch.ones(64, 256)
        if not unusual(x):
            buffer.zero_()
        return buffer + x


    for step in range(4):
        print(scores(values(step)).sum().item())
    """,
    ("torch.ones(", "torch.empty("),
)
_add(
    "read_through_a_view",
    """
    def work(x):
        buffer = torch.zeros(64, 256)
        first = buffer[0]
        before = first.sum().item() if unusual(x) else 0.0
        buffer.copy_(x)
        return before + first.sum().item()


    print([work(values(step)) for step in range(4)])
    """,
    _EMPTY,
)
_add(
    "read_after_an_exception",
    """
    def checked(x):
        if unusual(x):
            raise ValueError("unusual")
        return x


    def work(x):
        buffer = torch.zeros(64, 256)
        try:
            buffer.copy_(checked(x))
        except ValueError:
            pass
        return buffer.sum().item()


    print([work(values(step)) for step in range(4)])
    """,
    _EMPTY,
)
_add(
    "rows_counted_by_the_data",
    """
    def compact(x):
        rows = x[(x < 40).all(1)]
        buffer = torch.zeros(64, 256)
        buffer[: len(rows)] = rows
        return buffer


    print([compact(values(step)).sum().item() for step in range(4)])
    """,
    _EMPTY,
)
_add(
    "length_of_a_list",
    """
    def padded(rows):
        buffer = torch.zeros(64, 256)
        for number, row in enumerate(rows):
            buffer[number] = row
        return buffer


    print([padded([row for row in values(step) if not unusual(row)]).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "loop_left_early",
    """
    def until_unusual(x):
        buffer = torch.zeros(64, 256)
        for number in range(64):
            if unusual(x[number]):
                break
            buffer[number] = x[number]
        return buffer


    print([until_unusual(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "iterations_skipped",
    """
    def usual_rows(x):
        buffer = torch.zeros(64, 256)
        for number in range(64):
            if unusual(x[number]):
                continue
            buffer[number] = x[number]
        return buffer


    print([usual_rows(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "number_of_iterations_from_the_data",
    """
    def first_rows(x):
        buffer = torch.zeros(64, 256)
        for number in range(int((x < 40).all(1).sum())):
            buffer[number] = x[number]
        return buffer


    print([first_rows(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "accumulated_by_index",
    """
    def totals(x, rows):
        buffer = torch.zeros(64, 256)
        buffer.index_add_(0, rows, x)
        return buffer


    print([totals(values(step), torch.randperm(64)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "scattered_by_a_permutation",
    """
    def sorted_back(x):
        places = torch.argsort(x, 1)
        if unusual(x):
            places = places // 2
        buffer = torch.zeros(64, 256)
        buffer.scatter_(1, places, x)
        return buffer


    print([sorted_back(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "written_by_a_mask_that_is_usually_true",
    """
    def kept(x):
        mask = x < 40
        buffer = torch.zeros(64, 256)
        buffer[mask] = x[mask]
        return buffer


    print([kept(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "read_by_another_thread",
    """
    import threading

    SEEN = []
    BUFFER = None


    def reader(ready, done):
        ready.wait()
        SEEN.append(BUFFER.sum().item())
        done.set()


    def work(x):
        global BUFFER
        ready, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=reader, args=(ready, done))
        thread.start()
        BUFFER = torch.zeros(64, 256)
        if unusual(x):
            ready.set()
            done.wait()
        BUFFER.copy_(x)
        ready.set()
        thread.join()


    for step in range(3):
        work(values(step))
    print(SEEN)
    """,
    _EMPTY,
)
_add(
    "shared_with_numpy",
    """
    def work(x):
        buffer = torch.zeros(64, 256)
        array = buffer.numpy()
        before = float(array.sum()) if unusual(x) else 0.0
        buffer.copy_(x)
        return before + float(array.sum())


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "saved_for_backward",
    """
    weight = torch.ones(64, 256, requires_grad=True)


    def work(x):
        buffer = torch.zeros(64, 256)
        loss = (weight * buffer).sum() if unusual(x) else (weight * x).sum()
        loss.backward()
        buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)], weight.grad.sum().item())
    """,
    _EMPTY,
)
_add(
    "printed_for_unusual_values",
    """
    for step in range(3):
        x = values(step)
        buffer = torch.zeros(64, 256)
        if unusual(x):
            print("start", buffer)
        buffer.copy_(x)
        print(buffer.sum().item())
    """,
    _EMPTY,
)
_add(
    "function_with_two_kinds_of_callers",
    """
    def fill(buffer, x, rows):
        buffer[:rows] = x[:rows]


    for step in range(4):
        x = values(step)
        buffer = torch.zeros(64, 256)
        fill(buffer, x, 32 if unusual(x) else 64)
        print(buffer.sum().item())
    """,
    _EMPTY,
)
_add(
    "buffer_as_default_argument",
    """
    def latest(x, buffer=torch.zeros(64, 256)):
        if not unusual(x):
            buffer.copy_(x)
        return buffer.sum().item()


    print([latest(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "buffers_of_a_comprehension",
    """
    inputs = [x for x in (values(step) for step in range(3)) if not unusual(x)]
    buffers = [torch.zeros(64, 256) for _ in range(3)]
    for buffer, x in zip(buffers, inputs):
        buffer.copy_(x)
    print([buffer.sum().item() for buffer in buffers])
    """,
    _EMPTY,
)
_add(
    "suspended_before_the_write",
    """
    def stages(x):
        buffer = torch.zeros(64, 256)
        yield buffer
        buffer.copy_(x)
        yield buffer


    for step in range(3):
        x = values(step)
        steps = stages(x)
        first = next(steps)
        if unusual(x):
            print(first.sum().item())
        print(next(steps).sum().item())
    """,
    _EMPTY,
)
_add(
    "read_by_a_closure",
    """
    def work(x):
        buffer = torch.zeros(64, 256)

        def total():
            return buffer.sum().item()

        before = total() if unusual(x) else 0.0
        buffer.copy_(x)
        return before + total()


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "two_calls_on_one_line",
    """
    def halves(x):
        left, right = torch.zeros(64, 256), torch.zeros(64, 256)
        left.copy_(x)
        right[:, ::2] = x[:, ::2]
        return (left + right).sum().item()


    print([halves(values(step)) for step in range(3)])
    """,
    (
        "torch.zeros(64, 256), torch.zeros(64, 256)",
        "torch.empty(64, 256), torch.empty(64, 256)",
    ),
)
_add(
    "name_with_another_meaning",
    """
    from torch import zeros

    COUNT = []


    def zeros(*sizes):
        COUNT.append(len(COUNT) + 1)
        return torch.zeros(*sizes) + COUNT[-1]


    def work(x):
        buffer = zeros(64, 256)
        if not unusual(x):
            buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)], len(COUNT))
    """,
    ("buffer = zeros(64, 256)", "buffer = torch.empty(64, 256)"),
)
_add(
    "name_of_a_star_import",
    """
    from shapes import *


    def work(x):
        buffer = zeros(64, 256)
        buffer.copy_(x)
        return (buffer.sum() + len(LOG)).item()


    print([work(values(step)) for step in range(3)])
    """,
    ("buffer = zeros(64, 256)", "buffer = torch.empty(64, 256)"),
    files={
        "shapes.py": """
        import torch

        LOG = []


        def zeros(*sizes):
            LOG.append(sizes)
            return torch.zeros(*sizes)
        """
    },
)
_add(
    "function_of_torch_replaced",
    """
    made = []
    original = torch.zeros


    def counted(*sizes):
        made.append(sizes)
        return original(*sizes)


    torch.zeros = counted


    def work(x):
        buffer = torch.zeros(64, 256)
        buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)], len(made))
    """,
    ("buffer = torch.zeros(64, 256)", "buffer = torch.empty(64, 256)"),
)
_add(
    "code_in_a_string",
    """
    CODE = (
        "buffer = torch.zeros(64, 256)\\n"
        "if not unusual(x):\\n"
        "    buffer.copy_(x)\\n"
    )

    for step in range(3):
        names = {"torch": torch, "x": values(step), "unusual": unusual}
        exec(compile(CODE, "program.py", "exec"), names)
        print(names["buffer"].sum().item())
    """,
    _EMPTY,
)
_add(
    "decorator_that_reads_on_failure",
    """
    KEPT = {}


    def with_fallback(function):
        def run(x):
            try:
                return function(x)
            except ValueError:
                return KEPT["buffer"].sum().item()

        return run


    @with_fallback
    def work(x):
        buffer = KEPT["buffer"] = torch.zeros(64, 256)
        if unusual(x):
            raise ValueError
        buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "attribute_read_by_another_method",
    """
    class Window:
        def __init__(self):
            self.buffer = torch.zeros(64, 256)

        def push(self, x):
            if not unusual(x):
                self.buffer.copy_(x)

        def total(self):
            return self.buffer.sum().item()


    for step in range(3):
        window = Window()
        window.push(values(step))
        print(window.total())
    """,
    _EMPTY,
)
_add(
    "output_of_an_operator_in_a_part",
    """
    def sums(x, rows):
        buffer = torch.zeros(64, 256)
        torch.add(x[:rows], 1, out=buffer[:rows])
        return buffer.sum().item()


    print([sums(x, 32 if unusual(x) else 64) for x in (values(step) for step in range(3))])
    """,
    _EMPTY,
)
_add(
    "every_second_column",
    """
    def interleaved(x):
        buffer = torch.zeros(64, 256)
        buffer[:, ::2] = x[:, ::2]
        if not unusual(x):
            buffer[:, 1::2] = x[:, 1::2]
        return buffer.sum().item()


    print([interleaved(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "weight_of_the_old_values",
    """
    def mixed(x, keep):
        buffer = torch.zeros(64, 64)
        return torch.addmm(buffer, x, x.t(), beta=keep).sum().item()


    print([mixed(x, 1.0 if unusual(x) else 0.0) for x in (values(step) for step in range(3))])
    """,
    _EMPTY,
)
_add(
    "accumulator",
    """
    def total(inputs):
        result = torch.zeros(64, 256)
        for x in inputs:
            result += x
        return result.sum().item()


    print([total([values(step)]) for step in range(3)], total([]))
    """,
    _EMPTY,
)
_add(
    "zeroed_buffer_written_for_unusual_values",
    """
    buffer = torch.zeros(64, 256)
    for step in range(4):
        x = values(step)
        buffer.zero_()
        if unusual(x):
            buffer[x > 40] = 1.0
        print((x + buffer).sum().item())
    """,
    ("    buffer.zero_()\n", ""),
)
_add(
    "second_fill_after_a_write_in_a_branch",
    """
    def work(x):
        buffer = torch.zeros(64, 256)
        if unusual(x):
            buffer[0] = x[0]
            print(buffer.sum().item())
        buffer.zero_()
        buffer.add_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    """,
    ("    buffer.zero_()\n", ""),
)
_add(
    "scale_that_is_usually_one",
    """
    def scaled(x):
        scale = 0.5 if unusual(x) else 1.0
        x.mul_(scale)
        return x.sum().item()


    print([scaled(values(step)) for step in range(4)])
    """,
    ("    x.mul_(scale)\n", ""),
)
_add(
    "scale_from_the_command_line",
    """
    FACTOR = 2 if OTHER else 1

    for step in range(4):
        x = values(step)
        x *= FACTOR
        print(x.sum().item())
    """,
    ("    x *= FACTOR\n", ""),
)
_add(
    "copy_of_equal_data",
    """
    table = torch.zeros(64, 256)
    for step in range(4):
        source = torch.full((64, 256), 3.0 + (step if OTHER else 0))
        table.copy_(source)
        print(table.sum().item())
    """,
    ("    table.copy_(source)\n", "    table.copy_(source) if step == 0 else None\n"),
)
_add(
    "clamp_of_positive_values",
    """
    for step in range(4):
        x = values(step).abs()
        if OTHER:
            x = x - 1
        x.clamp_(min=0)
        print(x.sum().item())
    """,
    ("    x.clamp_(min=0)\n", ""),
)
_add(
    "written_in_one_of_two_branches",
    """
    def route(x, buffer):
        if unusual(x):
            return buffer.sum().item()
        buffer.copy_(x)
        return buffer.sum().item()


    print([route(values(step), torch.zeros(64, 256)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "returned_by_a_context_manager",
    """
    import contextlib


    class Guard:
        def __init__(self, buffers):
            self.buffers = buffers

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            if error is not None:
                print("kept", self.buffers[0].sum().item())
            return error is not None


    def checked(x):
        if unusual(x):
            raise ValueError
        return x


    for step in range(3):
        buffers = []
        with Guard(buffers):
            buffer = torch.zeros(64, 256)
            buffers.append(buffer)
            buffer.copy_(checked(values(step)))
            print(buffer.sum().item())
    """,
    _EMPTY,
)
_add(
    "source_that_is_sometimes_the_buffer",
    """
    buffer = torch.ones(64, 256)
    for step in range(4):
        x = values(step)
        chosen = buffer if unusual(x) else x
        buffer.zero_()
        buffer.copy_(chosen)
        print(buffer.sum().item())
    """,
    ("    buffer.zero_()\n", ""),
)
_add(
    "buffer_that_a_function_sometimes_returns",
    """
    buffer = torch.ones(64, 256)


    def source(x):
        return buffer if unusual(x) else x


    for step in range(4):
        chosen = source(values(step))
        buffer.zero_()
        buffer.copy_(chosen)
        print(buffer.sum().item())
    """,
    ("    buffer.zero_()\n", ""),
)
_add(
    "fill_before_a_copy_of_a_view",
    """
    buffer = torch.ones(64, 256)
    rows = buffer.view(64, 256)
    for step in range(4):
        x = values(step)
        chosen = rows if unusual(x) else x
        buffer.fill_(2)
        buffer.copy_(chosen)
        print(buffer.sum().item())
    """,
    ("    buffer.fill_(2)\n", ""),
)
