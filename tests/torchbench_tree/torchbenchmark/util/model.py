"""The base class of the tree's models, with the habits of the real one."""

import torch


def _one_seed(*_):
    return torch._C.default_generator.manual_seed(1337)


class BenchmarkModel:
    """Batch size, device and test of a model."""

    DEFAULT_TRAIN_BSIZE = None
    DEFAULT_EVAL_BSIZE = None

    def __init__(self, test, device, batch_size=None, extra_args=()):
        assert test in ("train", "eval"), test
        assert not extra_args, extra_args
        default = self.DEFAULT_TRAIN_BSIZE if test == "train" else self.DEFAULT_EVAL_BSIZE
        if not batch_size and not default:
            raise NotImplementedError(f"Test {test} is not implemented.")
        self.test, self.device, self.batch_size = test, device, batch_size or default
        torch.manual_seed = _one_seed
        torch.manual_seed(0)

    def get_module(self):
        """The module and its inputs."""
        raise NotImplementedError

    def set_module(self, module):
        """Use another module from now on."""
        self.model = module

    def eval_in_nograd(self):
        """Whether evaluation needs no gradients."""
        return True

    def invoke(self):
        """One iteration of the test."""
        return self.train() if self.test == "train" else self.eval()
