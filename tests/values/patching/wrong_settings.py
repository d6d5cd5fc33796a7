"""Programs in which settings, introspection, or numbers from data make a tempting patch wrong."""

from __future__ import annotations

from tests.values.patching.case import Register

_register = Register()
_add = _register.add
CASES = _register.cases
_EMPTY = ("buffer = torch.zeros(", "buffer = torch.empty(")

_add(
    "iterations_counted_by_a_variable_of_the_module",
    """
    for step in range(3):
        x = values(step)
        rows = int((x < 40).all(1).sum())
        buffer = torch.zeros(64, 256)
        for number in range(rows):
            buffer[number] = x[number]
        print(buffer.sum().item())
    """,
    _EMPTY,
)
_add(
    "iterations_counted_by_a_global_from_the_data",
    """
    ROWS = int((values() < 40).all(1).sum())


    def first_rows(x):
        buffer = torch.zeros(64, 256)
        for number in range(ROWS):
            buffer[number] = x[number]
        return buffer


    print([first_rows(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "iterations_from_the_command_line",
    """
    ROWS = 32 if OTHER else 64


    def first_rows(x):
        buffer = torch.zeros(64, 256)
        for number in range(ROWS):
            buffer[number] = x[number]
        return buffer


    print([first_rows(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "size_of_the_buffer_from_the_command_line",
    """
    ROWS = 64 + 8 * OTHER


    def first_rows(x):
        buffer = torch.zeros(ROWS, 256)
        for number in range(64):
            buffer[number] = x[number]
        return buffer


    print([first_rows(values(step)).sum().item() for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "output_that_is_not_written",
    """
    def sizes(x):
        buffer = torch.zeros(64, 256)
        torch.empty((64, 256), out=buffer)
        return buffer.add(x).sum().item()


    print([sizes(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "read_by_a_callee_from_the_frame",
    """
    import inspect


    def report(x):
        if unusual(x):
            print(inspect.currentframe().f_back.f_locals["buffer"].sum().item())


    def work(x):
        buffer = torch.zeros(64, 256)
        report(x)
        buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "read_through_its_address",
    """
    import ctypes


    def work(x):
        buffer = torch.zeros(64, 256)
        address = buffer.data_ptr()
        first = ctypes.string_at(address, 64) if unusual(x) else b""
        buffer.copy_(x)
        return first, buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "operators_counted_by_a_mode",
    """
    from torch.utils._python_dispatch import TorchDispatchMode


    class Count(TorchDispatchMode):
        names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))


    def work(x):
        buffer = torch.zeros(64, 256)
        buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    if OTHER:
        with Count():
            work(values())
        print(Count.names)
    """,
    _EMPTY,
)
_add(
    "source_that_is_printed",
    """
    import inspect


    def work(x):
        buffer = torch.zeros(64, 256)
        buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)], inspect.getsource(work).count("zeros"))
    """,
    _EMPTY,
)
_add(
    "yielded_between_pieces",
    """
    def halves(x):
        buffer = torch.zeros(64, 256)
        buffer[:32] = x[:32]
        if unusual(x):
            yield buffer.sum().item()
        buffer[32:] = x[32:]
        yield buffer.sum().item()


    print([list(halves(values(step))) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "written_behind_a_walrus",
    """
    def work(x):
        buffer = torch.zeros(64, 256)
        (usual := not unusual(x)) and buffer.copy_(x)
        return usual, buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "written_behind_a_one_line_if",
    """
    def work(x):
        buffer = torch.zeros(64, 256); usual = not unusual(x)
        if usual: buffer.copy_(x)
        return buffer.sum().item()


    print([work(values(step)) for step in range(3)])
    """,
    _EMPTY,
)
_add(
    "multiplied_by_one_with_signalling_nan",
    """
    for step in range(4):
        x = values(step)
        if OTHER:
            x.view(torch.int32)[0, 0] = 0x7F800001
        x *= 1
        print(x.view(torch.int32)[0, 0].item(), x[1:].sum().item())
    """,
    ("    x *= 1\n", ""),
)
_add(
    "multiplied_by_one_without_denormals",
    """
    torch.set_flush_denormal(True)
    for step in range(4):
        x = values(step)
        if OTHER:
            x.view(torch.int32)[0, 0] = 5
        x *= 1
        print(x.view(torch.int32)[0, 0].item(), x[1:].sum().item())
    torch.set_flush_denormal(False)
    """,
    ("    x *= 1\n", ""),
)
_add(
    "denormals_flushed_in_the_loop",
    """
    for step in range(4):
        if OTHER and step == 2:
            torch.set_flush_denormal(True)
        window = torch.ones(64, 256).cumsum(0) * 1e-30 * 1e-12
        bits = window.view(torch.int32) + 1
        print(bits.sum().item())
    torch.set_flush_denormal(False)
    """,
    (
        "for step in range(4):\n",
        "window = torch.ones(64, 256).cumsum(0) * 1e-30 * 1e-12\nfor step in range(4):\n",
    ),
    ("    window = torch.ones(64, 256).cumsum(0) * 1e-30 * 1e-12\n    bits", "    bits"),
)
_add(
    "number_changed_through_the_modules",
    """
    SIZE = 2


    def enlarge():
        setattr(sys.modules[__name__], "SIZE", 3) if __name__ in sys.modules else None
        enlarge.__globals__["SIZE"] = 3


    for step in range(4):
        if OTHER and step == 2:
            enlarge()
        window = torch.ones(64, 256).cumsum(0) * SIZE
        x = values(step) * window
        print(x.sum().item())
    """,
    (
        "for step in range(4):\n",
        "window = torch.ones(64, 256).cumsum(0) * SIZE\nfor step in range(4):\n",
    ),
    ("    window = torch.ones(64, 256).cumsum(0) * SIZE\n    x", "    x"),
)
_add(
    "autocast_in_the_loop",
    """
    for step in range(4):
        if OTHER and step == 2:
            torch.set_autocast_enabled("cpu", True)
        window = torch.arange(16384.0).reshape(64, 256).sin().mm(torch.arange(65536.0).reshape(256, 256).cos())
        x = values(step) * window
        print(x.sum().item())
    torch.set_autocast_enabled("cpu", False)
    """,
    (
        "for step in range(4):\n",
        "window = torch.arange(16384.0).reshape(64, 256).sin().mm(torch.arange(65536.0).reshape(256, 256).cos())\nfor step in range(4):\n",
    ),
    (
        "    window = torch.arange(16384.0).reshape(64, 256).sin().mm(torch.arange(65536.0).reshape(256, 256).cos())\n    x",
        "    x",
    ),
)
_add(
    "table_changed_by_another_file",
    """
    import changes

    TABLE = torch.randn(64, 256)
    for step in range(4):
        changes.change(OTHER)
        window = TABLE.abs() * 2
        x = values(step) * window
        print(x.sum().item())
    """,
    ("for step in range(4):\n", "window = TABLE.abs() * 2\nfor step in range(4):\n"),
    ("    window = TABLE.abs() * 2\n    x", "    x"),
    files={
        "changes.py": """
        import __main__


        def change(now):
            if now:
                __main__.TABLE.mul_(2)
        """
    },
)
_add(
    "mask_multiplied_with_a_mask_for_unusual_values",
    """
    for step in range(4):
        x = values(step)
        mask = (x > 0).float()
        first = x * mask
        second = (x + 1) * mask
        if unusual(x):
            print((mask * (x > 40)).dtype)
        print(first.sum().item(), second.sum().item())
    """,
    ("(x > 0).float()", "(x > 0)"),
    classes=("narrower-type",),
)
_add(
    "number_of_rows_set_by_another_file",
    """
    import parts

    for step in range(3):
        if OTHER and step:
            parts.ROWS = 32
        print(parts.first_rows(values(step)).sum().item())
    """,
    ("import parts", "import other_parts as parts"),
    files={
        "parts.py": """
        import torch

        ROWS = 64


        def first_rows(x):
            buffer = torch.zeros(64, 256)
            for number in range(ROWS):
                buffer[number] = x[number]
            return buffer
        """,
        "other_parts.py": """
        import torch

        ROWS = 64


        def first_rows(x):
            buffer = torch.empty(64, 256)
            for number in range(ROWS):
                buffer[number] = x[number]
            return buffer
        """,
    },
)
_add(
    "number_changed_by_importing_itself",
    """
    SIZE = 2

    if __name__ == "__main__":
        import __main__ as me

        for step in range(4):
            if OTHER and step == 2:
                me.SIZE = 3
            window = torch.ones(64, 256).cumsum(0) * SIZE
            x = values(step) * window
            print(x.sum().item())
    """,
    (
        "for step in range(4):\n",
        "window = torch.ones(64, 256).cumsum(0) * SIZE\n    for step in range(4):\n",
    ),
    ("        window = torch.ones(64, 256).cumsum(0) * SIZE\n        x", "        x"),
)
_add(
    "table_kept_by_a_log_of_another_file",
    """
    import logs

    log = logs.Log()
    for step in range(4):
        window = torch.arange(16384.0).reshape(64, 256).sin() * 2
        log.log(window)
        x = values(step) * window
        log.close(OTHER)
        print(x.sum().item())
    """,
    (
        "for step in range(4):\n",
        "window = torch.arange(16384.0).reshape(64, 256).sin() * 2\nfor step in range(4):\n",
    ),
    ("    window = torch.arange(16384.0).reshape(64, 256).sin() * 2\n    log", "    log"),
    files={
        "logs.py": """
        class Log:
            def log(self, table):
                self.table = table

            def close(self, change):
                if change:
                    self.table.mul_(2)
        """
    },
)
_add(
    "result_of_the_last_iteration_read_first",
    """
    def latest():
        try:
            return window.sum().item()
        except NameError:
            return 0.0


    for step in range(4):
        if OTHER:
            print(latest())
        window = torch.arange(16384.0).reshape(64, 256).sin() * 2
        x = values(step) * window
        print(x.sum().item())
    """,
    (
        "for step in range(4):\n",
        "window = torch.arange(16384.0).reshape(64, 256).sin() * 2\nfor step in range(4):\n",
    ),
    ("    window = torch.arange(16384.0).reshape(64, 256).sin() * 2\n    x", "    x"),
)
_add(
    "result_that_may_not_exist_yet",
    """
    for step in range(4):
        try:
            first = window is None
        except NameError:
            first = True
        if OTHER:
            print(first)
        window = torch.arange(16384.0).reshape(64, 256).sin() * 2
        x = values(step) * window
        print(x.sum().item())
    """,
    (
        "for step in range(4):\n",
        "window = torch.arange(16384.0).reshape(64, 256).sin() * 2\nfor step in range(4):\n",
    ),
    ("    window = torch.arange(16384.0).reshape(64, 256).sin() * 2\n    x", "    x"),
)
_add(
    "loop_that_may_not_run",
    """
    for step in range(0 if OTHER else 4):
        window = torch.arange(16384.0).reshape(64, 256).sin() * 2
        x = values(step) * window
        print(x.sum().item())
    try:
        print(window.sum().item())
    except NameError:
        print("nothing")
    """,
    (
        "for step in range(0 if OTHER else 4):\n",
        "window = torch.arange(16384.0).reshape(64, 256).sin() * 2\nfor step in range(0 if OTHER else 4):\n",
    ),
    ("    window = torch.arange(16384.0).reshape(64, 256).sin() * 2\n    x", "    x"),
)
