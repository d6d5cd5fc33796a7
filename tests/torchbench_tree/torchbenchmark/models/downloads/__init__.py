"""Wants its weights from the network, again and again."""

from urllib.request import urlopen

from torchbenchmark.util.model import BenchmarkModel


class Model(BenchmarkModel):
    """Evaluate, after a download."""

    DEFAULT_EVAL_BSIZE = 1

    def __init__(self, test, device, batch_size=None, extra_args=()):
        super().__init__(test, device, batch_size, extra_args)
        while True:
            try:
                self.weights = urlopen("https://weights.invalid/tiny.pt").read()
                break
            except Exception as error:
                print(f"again, because of {error}")
