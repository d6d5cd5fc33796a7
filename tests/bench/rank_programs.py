"""A small network for several ranks, and wrappers of it: correct, wrong, and with failures in one rank."""

NET = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import register_optimizer_step_post_hook

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(16, 32)
            self.norm = torch.nn.BatchNorm1d(32)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))
            self.last = torch.nn.Linear(32, 4)

        def forward(self, x):
            x = torch.tanh(self.norm(self.first(x)))
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.last(x)

    def loss(output):
        return output.square().mean()

    def make():
        return Net(), torch.randn(8, 16), loss

    class Trained:
        "With an optimizer that has momentum."
        def module(self):
            return Net()

        def inputs(self):
            return torch.randn(8, 16)

        def loss(self, output):
            return loss(output)

        def optimizer(self, parameters):
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def drifts(module):
        "Correct gradients, and parameters of rank 1 that drift after each step of an optimizer."
        own = next(module.parameters())
        def after(optimizer, args, kwargs):
            ours = any(own is p for group in optimizer.param_groups for p in group["params"])
            if ours and dist.get_rank() == 1:
                with torch.no_grad():
                    own.mul_(1 + 2e-7)
        register_optimizer_step_post_hook(after)
        return DistributedDataParallel(module)

    def skips_a_step(module):
        "DistributedDataParallel that undoes the steps of the optimizer in all ranks."
        kept = [p.detach().clone() for p in module.parameters()]
        own = next(module.parameters())
        wrapped = DistributedDataParallel(module)
        def call(x):
            with torch.no_grad():
                for now, before in zip(module.parameters(), kept):
                    before.copy_(now)
            return wrapped(x)
        def after(optimizer, args, kwargs):
            if any(own is p for group in optimizer.param_groups for p in group["params"]):
                with torch.no_grad():
                    for now, before in zip(module.parameters(), kept):
                        now.copy_(before)
        register_optimizer_step_post_hook(after)
        return call

    def make_fixed():
        "The same inputs in every rank."
        return Net(), torch.linspace(-1, 1, 128).view(8, 16), loss

    def make_shared():
        "Targets that share memory with the inputs."
        x = torch.randn(9, 16)
        return Net(), x[:-1], lambda output: (output - x[1:, :4]).square().mean()

    def no_sync(module):
        wrapped = DistributedDataParallel(module)
        wrapped.require_backward_grad_sync = False
        return wrapped

    def only_rank_0_is_right(module):
        "Averages over the ranks, and then changes the gradients of rank 1."
        def change(gradient):
            return gradient if dist.get_rank() == 0 else 2 * gradient
        wrapped = DistributedDataParallel(module)
        def after(state, bucket):
            future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
            return future.then(lambda done: change(done.value()[0]))
        wrapped.register_comm_hook(None, after)
        return wrapped

    def summed(module):
        "Adds up the gradients instead of averaging them."
        wrapped = DistributedDataParallel(module)
        def add(state, bucket):
            future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return future.then(lambda done: done.value()[0])
        wrapped.register_comm_hook(None, add)
        return wrapped

    def by_hand(module):
        "A correct wrapper without DistributedDataParallel."
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(average)
        return module

    def average(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    def slow_communication(module):
        "DistributedDataParallel whose communication takes 30 ms more."
        wrapped = DistributedDataParallel(module)
        def sleep(state, bucket):
            time.sleep(0.03)
            future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
            return future.then(lambda done: done.value()[0])
        wrapped.register_comm_hook(None, sleep)
        return wrapped

    def troubled(trouble):
        "DistributedDataParallel with trouble in rank 1 after some calls."
        def wrap(module):
            wrapped = DistributedDataParallel(module)
            calls = [0]
            def call(x):
                calls[0] += 1
                if dist.get_rank() == 1 and calls[0] > 6:
                    trouble()
                return wrapped(x)
            return call
        return wrap

    def die():
        print("rank 1 says goodbye", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def hang():
        while True:
            time.sleep(0.1)

    def say_no():
        raise ValueError("rank 1 says no")

    def need_memory():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    def leave():
        os._exit(3)

    def need_device_memory():
        raise torch.OutOfMemoryError("out of memory in rank 1")

    def wait_for_rank_0():
        "A message that rank 0 never sends, while rank 0 waits for gradients of rank 1."
        dist.recv(torch.empty(1), 0)

    def one_collective_more():
        dist.all_reduce(torch.ones(3))

    def other_order(module):
        "Two collective operations in another order in rank 1."
        def reduce():
            dist.all_reduce(torch.ones(5))
        def broadcast():
            dist.broadcast(torch.ones(7), 1)
        wrapped = DistributedDataParallel(module)
        calls = [0]
        def call(x):
            calls[0] += 1
            operations = [reduce, broadcast]
            if dist.get_rank() == 1 and calls[0] > 6:
                operations.reverse()
            for operation in operations:
                operation()
            return wrapped(x)
        return call

    waits_alone, asks_for_more = troubled(wait_for_rank_0), troubled(one_collective_more)
    needs_device = troubled(need_device_memory)
    dies, hangs, raises = troubled(die), troubled(hang), troubled(say_no)
    needs, leaves = troubled(need_memory), troubled(leave)

    def raises_in_rank_0(module):
        wrapped = DistributedDataParallel(module)
        calls = [0]
        def call(x):
            calls[0] += 1
            if dist.get_rank() == 0 and calls[0] > 6:
                raise ValueError("rank 0 says no")
            return wrapped(x)
        return call
"""
