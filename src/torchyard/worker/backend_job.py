"""What a backend is handed to make a callable of. No torch at import."""

from typing import Any, Dict, Tuple

from torchyard.worker.built import CannotBuild


class Job:
    """A module with its inputs, and what will be done with the callable."""

    def __init__(
        self,
        module: Any,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        device: str,
        training: bool = False,
        mutates: bool = False,
        dynamic: bool = False,
    ) -> None:
        self.module = module
        self.args = args
        self.kwargs = kwargs
        self.device = device
        self.training = training
        self.mutates = mutates
        self.dynamic = dynamic

    def refuse_training(self, backend: str) -> None:
        """CannotBuild where the callable would have to differentiate."""
        if self.training:
            raise CannotBuild(backend + " is for inference only", hint="use --mode inference")

    def refuse_writing(self, backend: str) -> None:
        """CannotBuild where an iteration changes parameters that the callable has copies of."""
        if self.mutates:
            raise CannotBuild(
                backend + " keeps copies of the parameters, and this workload changes them",
                hint="compare eager with inductor on it",
            )
