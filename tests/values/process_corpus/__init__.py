"""Small programs of several processes, with and without planted waste in one kind of process."""

from __future__ import annotations

from dataclasses import dataclass

WASTE = "# waste"
"""Comment on the line of the planted waste."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, how it is started, and where its waste is."""

    name: str
    text: str
    options: tuple[str, ...] = ()
    """Options of `torchyard values` before the script."""
    arguments: tuple[str, ...] = ()
    pattern: str = ""
    """Of the planted waste; empty for a clean program."""
    where: tuple[str, ...] = ()
    """Processes with the finding, as `KIND` or `KIND NUMBER`."""

    @property
    def line(self) -> int:
        """Line of the planted waste."""
        return next(n for n, line in enumerate(self.text.split("\n"), 1) if WASTE in line)


LOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

torch.set_num_threads(1)


def filled(number):
    result = torch.zeros(64, 64)  # waste
    torch.add(torch.randn(64, 64), number, out=result)
    return result


def plain(number):
    return torch.randn(64, 64) + number


class Rows(Dataset):
    def __init__(self, row):
        self.row = row

    def __len__(self):
        return 16

    def __getitem__(self, number):
        return self.row(number)


class Stream(IterableDataset):
    def __init__(self, row):
        self.row = row

    def __iter__(self):
        first, step = get_worker_info().id, get_worker_info().num_workers
        return (self.row(number) for number in range(first, 16, step))


def collated(rows):
    result = torch.zeros(len(rows), 64, 64)
    return torch.stack(rows, out=result)


def total(loader, epochs=1):
    return sum(batch.sum().item() for _ in range(epochs) for batch in loader)


if __name__ == "__main__":
    {body}
"""

DDP = """
import sys
import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


def wasteful(x, y):
    result = torch.zeros(64, 128)  # waste
    torch.add(x, y, out=result)
    return result


def train(waste=(), same=False, unused=False, accumulate=False, **options):
    rank = dist.get_rank()
    torch.manual_seed(0 if same else rank)
    layers = [torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)]
    model = torch.nn.Sequential(*layers)
    if unused:
        model[1].extra = torch.nn.Linear(64, 64)
    ddp = DistributedDataParallel(model, find_unused_parameters=unused, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    for step in range(6):
        optimizer.zero_grad()
        for part in range(2 if accumulate else 1):
            x, y = torch.randn(64, 128), torch.randn(64, 128)
            if rank in waste:
                x = wasteful(x, y)
            if accumulate and part == 0:
                with ddp.no_sync():
                    torch.nn.functional.mse_loss(ddp(x), y).backward()
            else:
                torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()


def spawned(rank, ranks, file, waste):
    init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=ranks)
    train(waste)
    destroy_process_group()


def collectives():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    for _ in range(4):
        own = torch.randn(64, 64)
        dist.all_reduce(own)
        received = [torch.empty(64, 64) for _ in range(ranks)]
        dist.all_gather(received, own * (rank + 1))
        dist.broadcast(own, 0)
        if rank == 0:
            dist.send(received[0], 1)
        else:
            dist.recv(received[0], 0)
        total = torch.stack(received).sum().item()
    return total


if __name__ == "__main__":
    {body}
"""

PROCESSES = """
import concurrent.futures
import multiprocessing
import sys
import torch

torch.set_num_threads(1)


def wasteful(number):
    torch.set_num_threads(1)
    for _ in range(8):
        result = torch.zeros(64, 64)  # waste
        torch.add(torch.randn(64, 64), number, out=result)
    return result.sum().item()


def plain(number):
    torch.set_num_threads(1)
    for _ in range(8):
        result = torch.randn(64, 64) + number
    return result.sum().item()


def send(queue, end):
    torch.set_num_threads(1)
    for number in range(4):
        queue.put(torch.randn(64, 64) + number)
    end.wait()


def offer(buffer, ready, taken):
    torch.set_num_threads(1)
    for number in range(4):
        buffer.zero_()  # read by the other process
        ready.put(number)
        taken.get()
        buffer.copy_(torch.rand(64, 64) + number)
        ready.put(number)
        taken.get()


def take(buffer, ready, taken):
    ready.get()
    total = buffer.sum().item()
    taken.put(0)
    return total


if __name__ == "__main__":
    {body}
"""


def loader(body: str) -> str:
    """Return a program with data loaders."""
    return LOADER.replace("{body}", body).lstrip("\n")


def ddp(body: str) -> str:
    """Return a program with a process group."""
    return DDP.replace("{body}", body).lstrip("\n")


def processes(body: str) -> str:
    """Return a program with child processes."""
    return PROCESSES.replace("{body}", body).lstrip("\n")


FORK, SPAWN = "multiprocessing_context='fork'", "multiprocessing_context='spawn'"
DEAD = "dead initialisation"
ENV = "init_process_group('gloo'); "
END = "; destroy_process_group()"
TWO = ("--ranks", "2")
STORE = "import tempfile; file = tempfile.mkdtemp() + '/store'; "
START_TWO = "torch.multiprocessing.spawn(spawned, (2, file, {waste}), nprocs=2)"

PLANTED = (
    Program(
        name="loader-fork",
        text=loader(f"print(total(DataLoader(Rows(filled), 4, num_workers=2, {FORK})))"),
        pattern=DEAD,
        where=("loader 0", "loader 1"),
    ),
    Program(
        name="loader-spawn",
        text=loader(f"print(total(DataLoader(Rows(filled), 4, num_workers=2, {SPAWN})))"),
        pattern=DEAD,
        where=("loader 0", "loader 1"),
    ),
    Program(
        name="loader-persistent",
        text=loader(
            f"print(total(DataLoader(Rows(filled), 4, num_workers=2, persistent_workers=True, {FORK}), 3))"
        ),
        pattern=DEAD,
        where=("loader 0", "loader 1"),
    ),
    Program(
        name="loader-two-epochs",
        text=loader(f"print(total(DataLoader(Rows(filled), 4, num_workers=1, {FORK}), 2))"),
        pattern=DEAD,
        where=("loader 0", "loader 0"),
    ),
    Program(
        name="loader-iterable",
        text=loader(f"print(total(DataLoader(Stream(filled), 4, num_workers=2, {FORK})))"),
        pattern=DEAD,
        where=("loader 0", "loader 1"),
    ),
    Program(
        name="loader-and-main",
        text=loader(
            f"print(filled(1).sum().item() + total(DataLoader(Rows(filled), 4, num_workers=1, {FORK})))"
        ),
        pattern=DEAD,
        where=("main", "loader 0"),
    ),
    Program(
        name="ranks-both",
        text=ddp(f"{ENV}train((0, 1)){END}"),
        options=TWO,
        pattern=DEAD,
        where=("rank 0", "rank 1"),
    ),
    Program(
        name="ranks-one",
        text=ddp(f"{ENV}train((1,)){END}"),
        options=TWO,
        pattern=DEAD,
        where=("rank 1",),
    ),
    Program(
        name="ranks-spawn",
        text=ddp(STORE + START_TWO.format(waste="(0, 1)")),
        pattern=DEAD,
        where=("rank 0", "rank 1"),
    ),
    Program(
        name="ranks-torchrun",
        text=ddp(f"{ENV}train((0,)){END}"),
        options=("-m", "torch.distributed.run", "--", "--standalone", "--nproc-per-node", "2"),
        pattern=DEAD,
        where=("rank 0",),
    ),
    Program(
        name="process-fork",
        text=processes(
            "p = multiprocessing.get_context('fork').Process(target=wasteful, args=(2,)); p.start(); p.join()"
        ),
        pattern=DEAD,
        where=("child",),
    ),
    Program(
        name="process-pool",
        text=processes(
            "context = multiprocessing.get_context('spawn')\n"
            "    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:\n"
            "        print(list(pool.map(wasteful, range(2))))"
        ),
        pattern=DEAD,
        where=("child",),
    ),
    Program(
        name="forkserver",
        text=processes(
            "p = multiprocessing.get_context('forkserver').Process(target=wasteful, args=(2,)); p.start(); p.join()"
        ),
        pattern=DEAD,
        where=("child",),
    ),
)

CLEAN = (
    Program(
        name="loader-fork",
        text=loader(f"print(total(DataLoader(Rows(plain), 4, num_workers=2, {FORK})))"),
    ),
    Program(
        name="loader-spawn",
        text=loader(f"print(total(DataLoader(Rows(plain), 4, num_workers=2, {SPAWN})))"),
    ),
    Program(
        name="loader-persistent",
        text=loader(
            f"print(total(DataLoader(Rows(plain), 4, num_workers=2, persistent_workers=True, {FORK}), 3))"
        ),
    ),
    Program(
        name="loader-iterable",
        text=loader(f"print(total(DataLoader(Stream(plain), 4, num_workers=2, {FORK})))"),
    ),
    Program(name="ddp", text=ddp(f"{ENV}train(){END}"), options=TWO),
    Program(
        name="ddp-bucket-views",
        text=ddp(f"{ENV}train(gradient_as_bucket_view=True){END}"),
        options=TWO,
    ),
    Program(name="ddp-same-data", text=ddp(f"{ENV}train(same=True){END}"), options=TWO),
    Program(name="ddp-unused", text=ddp(f"{ENV}train(unused=True){END}"), options=TWO),
    Program(name="ddp-accumulate", text=ddp(f"{ENV}train(accumulate=True){END}"), options=TWO),
    Program(name="ddp-static", text=ddp(f"{ENV}train(static_graph=True){END}"), options=TWO),
    Program(
        name="ddp-same-data-small-buckets",
        text=ddp(f"{ENV}train(same=True, bucket_cap_mb=0.05){END}"),
        options=TWO,
    ),
    Program(name="ddp-spawn", text=ddp(STORE + START_TWO.format(waste="()"))),
    Program(name="collectives", text=ddp(f"{ENV}print(collectives()){END}"), options=TWO),
    Program(
        name="queue",
        text=processes(
            "context = torch.multiprocessing.get_context('spawn'); queue = context.Queue()\n"
            "    end = context.Event(); p = context.Process(target=send, args=(queue, end)); p.start()\n"
            "    print(sum(queue.get().sum().item() for _ in range(4))); end.set(); p.join()"
        ),
    ),
    Program(
        name="shared-memory",
        text=processes(
            "context = torch.multiprocessing.get_context('spawn'); buffer = torch.rand(64, 64).share_memory_()\n"
            "    ready, taken = context.SimpleQueue(), context.SimpleQueue()\n"
            "    p = context.Process(target=offer, args=(buffer, ready, taken)); p.start()\n"
            "    print(sum(take(buffer, ready, taken) for _ in range(8))); p.join()"
        ),
    ),
    Program(
        name="pool",
        text=processes(
            "print(multiprocessing.get_context('fork').Pool(2).map(plain, range(1, 5)))"
        ),
    ),
)
