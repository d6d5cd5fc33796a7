"""A seismic inversion: waves through a model of the ground, and the gradient of its velocities.

    torchyard values --target build:deepwave examples/values/wave_propagation.py
    torchyard values --target build:deepwave examples/values/wave_propagation.py --python
    torchyard values --target build:deepwave examples/values/wave_propagation.py --device cuda

Needs torch and deepwave (docs/howto/build-companions.md builds it). deepwave propagates in C or CUDA, which reads
and writes tensors by their address and is not seen; `--python` has it propagate with operators of torch.
"""

import argparse

import deepwave
import torch

SPACING_M = 5.0
STEP_S = 0.001
FREQUENCY_HZ = 25.0
SHOTS = 4


def main() -> None:
    """Move a model towards the true one for a few steps."""
    parser = argparse.ArgumentParser(description="Invert for velocities by gradient descent.")
    parser.add_argument("--size", type=int, default=64, help="cells in each direction")
    parser.add_argument("--times", type=int, default=120, help="time steps of each propagation")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--python", action="store_true", help="propagate with operators of torch")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_device(given.device)
    how = {"backend": "eager"} if given.python else {}
    size = given.size
    truth = torch.full((size, size), 1500.0)
    truth[size // 2 :] = 2000.0
    velocity = torch.full((size, size), 1500.0, requires_grad=True)
    sources = torch.zeros(SHOTS, 1, 2, dtype=torch.long)
    sources[:, 0, 0] = 2
    sources[:, 0, 1] = torch.arange(SHOTS) * size // SHOTS
    receivers = torch.full((SHOTS, size, 2), 2, dtype=torch.long)
    receivers[:, :, 1] = torch.arange(size)
    wavelet = deepwave.wavelets.ricker(
        FREQUENCY_HZ, given.times, STEP_S, 1.5 / FREQUENCY_HZ
    ).repeat(SHOTS, 1, 1)

    def record(model: torch.Tensor) -> torch.Tensor:
        return deepwave.scalar(
            model,
            SPACING_M,
            STEP_S,
            source_amplitudes=wavelet,
            source_locations=sources,
            receiver_locations=receivers,
            **how,
        )[-1]

    with torch.no_grad():
        observed = record(truth)
    optimizer = torch.optim.SGD([velocity], lr=1e7)
    for _ in range(given.steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(record(velocity), observed)
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3e}")


if __name__ == "__main__":
    main()
