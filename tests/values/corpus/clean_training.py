"""Clean programs: training methods."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

STEPS = 4


def _network(inputs: int = 64, outputs: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, outputs))


def linear_regression_with_sgd() -> None:
    model = nn.Linear(128, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(32, 128)), torch.randn(32, 64)).backward()
        optimizer.step()


def linear_regression_with_adam() -> None:
    model = nn.Linear(128, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(32, 128)) - torch.randn(32, 64)).abs().mean().backward()
        optimizer.step()


def foreach_adamw_with_a_schedule() -> None:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.huber_loss(model(torch.randn(32, 64)), torch.randn(32, 32)).backward()
        optimizer.step()
        schedule.step()


def gradient_accumulation() -> None:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            loss = F.mse_loss(model(torch.randn(16, 64)), torch.randn(16, 32))
            (loss / 3).backward()
        optimizer.step()


def gradient_clipping() -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(32, 64) * 4), torch.randn(32, 32) * 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def moving_average_of_weights() -> None:
    model = _network()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(32, 64)), torch.randn(32, 32)).backward()
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.01)


def activation_checkpointing() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))
    optimizer = torch.optim.AdamW(blocks.parameters())
    for _ in range(STEPS):
        hidden = torch.randn(128, 64)
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        optimizer.zero_grad()
        hidden.pow(2).mean().backward()
        optimizer.step()


def adversarial_networks() -> None:
    maker, judge = (
        _network(16, 128),
        nn.Sequential(nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)),
    )
    maker_optimizer = torch.optim.Adam(maker.parameters(), betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), betas=(0.5, 0.999))
    for _ in range(STEPS):
        real, fake = torch.randn(64, 128), maker(torch.randn(64, 16))
        judge_optimizer.zero_grad()
        real_score, fake_score = judge(real), judge(fake.detach())
        judge_loss = F.binary_cross_entropy_with_logits(real_score, torch.ones_like(real_score))
        judge_loss += F.binary_cross_entropy_with_logits(fake_score, torch.zeros_like(fake_score))
        judge_loss.backward()
        judge_optimizer.step()
        maker_optimizer.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        maker_optimizer.step()


def denoising_diffusion() -> None:
    model = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 1, 3, padding=1))
    optimizer = torch.optim.AdamW(model.parameters())
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
    for _ in range(STEPS):
        image, noise = torch.rand(8, 1, 28, 28), torch.randn(8, 1, 28, 28)
        level = kept[torch.randint(0, 100, (8,))][:, None, None, None]
        noisy = level.sqrt() * image + (1 - level).sqrt() * noise
        guess = model(torch.cat([noisy, level.expand_as(noisy)], dim=1))
        optimizer.zero_grad()
        F.mse_loss(guess, noise).backward()
        optimizer.step()


def policy_gradient() -> None:
    policy = _network(64, 16)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(STEPS):
        states = torch.randn(256, 64)
        choices = torch.distributions.Categorical(logits=policy(states))
        actions = choices.sample()
        returns = torch.randn(256)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
        loss = -(choices.log_prob(actions) * advantage).mean() - 0.01 * choices.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def deep_q_learning() -> None:
    online = _network(64, 8)
    target = copy.deepcopy(online).requires_grad_(requires_grad=False)
    optimizer = torch.optim.RMSprop(online.parameters())
    for step in range(STEPS):
        states, following = torch.randn(128, 64), torch.randn(128, 64)
        actions, rewards = torch.randint(0, 8, (128, 1)), torch.randn(128)
        with torch.no_grad():
            wanted = rewards + 0.99 * target(following).amax(1)
        value = online(states).gather(1, actions).squeeze(1)
        optimizer.zero_grad()
        F.smooth_l1_loss(value, wanted).backward()
        optimizer.step()
        if step % 2 == 1:
            target.load_state_dict(online.state_dict())


def contrastive_pairs() -> None:
    images, texts = _network(96, 64), _network(48, 64)
    temperature = nn.Parameter(torch.tensor(2.0))
    parameters = [*images.parameters(), *texts.parameters(), temperature]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(STEPS):
        left = F.normalize(images(torch.randn(64, 96)), dim=-1)
        right = F.normalize(texts(torch.randn(64, 48)), dim=-1)
        logits = temperature.exp() * left @ right.t()
        same = torch.arange(64)
        loss = (F.cross_entropy(logits, same) + F.cross_entropy(logits.t(), same)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def distillation_from_a_teacher() -> None:
    teacher, student = _network().eval(), _network()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(STEPS):
        batch = torch.randn(64, 64)
        with torch.no_grad():
            wanted = (teacher(batch) / 2).softmax(-1)
        guess = (student(batch) / 2).log_softmax(-1)
        optimizer.zero_grad()
        F.kl_div(guess, wanted, reduction="batchmean").backward()
        optimizer.step()


class _LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


def low_rank_adaptation() -> None:
    model = nn.Sequential(
        _LowRank(nn.Linear(64, 128), 4), nn.ReLU(), _LowRank(nn.Linear(128, 64), 4)
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(64, 64)), torch.randn(64, 64)).backward()
        optimizer.step()


def mixed_precision() -> None:
    model = _network(64, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(torch.randn(512, 64))
        loss = F.cross_entropy(logits.float(), torch.randint(0, 10, (512,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gradient_penalty() -> None:
    judge = nn.Sequential(nn.Linear(128, 64), nn.Softplus(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(judge.parameters())
    for _ in range(STEPS):
        points = torch.randn(64, 128, requires_grad=True)
        (slope,) = torch.autograd.grad(judge(points).sum(), points, create_graph=True)
        optimizer.zero_grad()
        (slope.norm(dim=1) - 1).pow(2).mean().backward()
        optimizer.step()
