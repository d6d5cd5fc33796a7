"""Ordinary programs in which the tempting patch is wrong, written before the detectors were read."""

from __future__ import annotations

from tests.values.patching.case import Register

_register = Register()
_add = _register.add
CASES = _register.cases
_add(
    "slots_of_a_smaller_last_batch",
    '''
    """Evaluate a classifier in batches and average the probabilities of fixed-size slots."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 100)).eval()
    data = torch.randn(8 * 64 - 12, 64)
    BATCH = 64


    @torch.no_grad()
    def evaluate(data):
        totals = []
        for start in range(0, len(data), BATCH):
            x = data[start:start + BATCH]
            slots = torch.zeros(BATCH, 100)
            slots[:x.shape[0]] = model(x).softmax(-1)
            totals.append(slots.mean(0))
        return torch.stack(totals).mean(0)


    for epoch in range(3):
        probabilities = evaluate(data)
        print(epoch, round(probabilities.sum().item(), 6), probabilities.argmax().item())
    ''',
    ("torch.zeros(BATCH, 100)", "torch.empty(BATCH, 100)"),
    start="",
)
_add(
    "histogram_that_scatter_add_collects",
    '''
    """Class histogram and per-class means with scatter_add."""
    import torch

    torch.manual_seed(1)
    CLASSES = 4096
    features = torch.randn(20000, 16)
    for step in range(5):
        labels = torch.randint(0, CLASSES, (20000,))
        counts = torch.zeros(CLASSES)
        counts.scatter_add_(0, labels, torch.ones(20000))
        sums = torch.zeros(CLASSES, 16)
        sums.index_add_(0, labels, features)
        means = sums / counts.clamp(min=1).unsqueeze(1)
        print(step, int(counts.max()), round(means.norm().item(), 4))
    ''',
    ("counts = torch.zeros(CLASSES)", "counts = torch.empty(CLASSES)"),
    start="",
)
_add(
    "padding_of_shorter_sentences",
    '''
    """Pad sentences of word vectors; the corpus happens to have lines of one length."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    text = """the cat sat on the mat today again
    a dog ran in the park all day
    we like to read good books at night
    birds sing in the tall trees each morning"""
    lines = [line.split() for line in text.splitlines()]
    vocabulary = {word: i for i, word in enumerate(sorted({w for line in lines for w in line}))}
    embedding = nn.Embedding(len(vocabulary), 256)
    gru = nn.GRU(256, 64, batch_first=True)


    def collate(batch, longest=8):
        padded = torch.zeros(len(batch), longest, 256)
        for i, words in enumerate(batch):
            vectors = embedding(torch.tensor([vocabulary[w] for w in words]))
            padded[i, :len(words)] = vectors.detach()
        return padded


    extra = ["the dog sat".split(), "birds read".split()]
    for epoch in range(6):
        batch = lines if epoch < 5 else lines + extra
        output, hidden = gru(collate(batch))
        print(epoch, round(output.pow(2).mean().item(), 6), round(hidden.sum().item(), 5))
    ''',
    ("torch.zeros(len(batch)", "torch.empty(len(batch)"),
    start="",
)
_add(
    "mask_that_is_true_everywhere_by_chance",
    '''
    """Scatter the predictions of confident boxes; all are confident in this data."""
    import sys

    import torch

    THRESHOLD = 0.5 if "other" in sys.argv else 0.0

    torch.manual_seed(3)
    weight = torch.randn(128, 128)
    for step in range(6):
        boxes = torch.randn(512, 128)
        scores = torch.rand(512)
        keep = scores >= THRESHOLD
        refined = torch.zeros_like(boxes)
        refined[keep] = (boxes @ weight)[keep].tanh()
        print(step, int(keep.sum()), round(refined.sum(0).abs().max().item(), 5))
    ''',
    ("torch.zeros_like(boxes)", "torch.empty_like(boxes)"),
    start="",
)
_add(
    "state_that_is_read_in_every_fourth_step",
    '''
    """A momentum-like state that is reset every fourth step."""
    import torch

    torch.manual_seed(0)
    weights = torch.randn(256, 256)
    x = torch.randn(256, 256)
    log = []
    for step in range(12):
        history = torch.zeros(256, 256)
        if step % 4 != 3:
            history.copy_(x)
        x = torch.tanh(weights @ x / 16 + 0.5 * history)
        x = x - x.mean()
        log.append(round(x.std().item(), 6))
    print(log)
    ''',
    ("history = torch.zeros(256, 256)", "history = torch.empty(256, 256)"),
    start="",
)
_add(
    "weights_changed_in_every_fold",
    '''
    """Leave-one-out weights: the mask of ones is changed in every iteration."""
    import torch

    torch.manual_seed(0)
    samples = torch.randn(512, 512)
    target = samples @ torch.randn(512)


    def weighted_error(prediction, weights):
        weights /= weights.sum()
        return (weights * (prediction - target) ** 2).sum()


    solution = torch.linalg.lstsq(samples + 0.1 * torch.eye(512), target.unsqueeze(1)).solution
    errors = []
    for fold in range(20):
        weights = torch.ones(512)
        distances = torch.ones(512, 512).tril()
        distances[fold] = 0.0
        weights[fold] = 0.0
        prediction = (distances * samples) @ solution
        errors.append(weighted_error(prediction.squeeze(1), weights).item())
    print([round(e, 3) for e in errors])
    ''',
    ("    distances = torch.ones(512, 512).tril()\n", ""),
    (
        "for fold in range(20):\n",
        "distances = torch.ones(512, 512).tril()\nfor fold in range(20):\n",
    ),
    start="",
)
_add(
    "noise_that_moves_the_generator",
    '''
    """The same augmentation noise in each epoch, by seeding; dropout follows the generator."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.3), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    images = torch.randn(128, 256)
    labels = torch.randint(0, 10, (128,))
    for epoch in range(8):
        torch.manual_seed(1234)
        noise = 0.1 * torch.randn(128, 256)
        loss = nn.functional.cross_entropy(model(images + noise), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, round(loss.item(), 6))
    ''',
    ("    noise = 0.1 * torch.randn(128, 256)\n", ""),
    (
        "for epoch in range(8):\n",
        "torch.manual_seed(1234)\nnoise = 0.1 * torch.randn(128, 256)\nfor epoch in range(8):\n",
    ),
    start="",
)
_add(
    "matrix_of_a_buffer_that_training_changes",
    '''
    """Whitening with running statistics: the matrix is constant in evaluation, not in training."""
    import torch
    from torch import nn


    class Whitening(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.register_buffer("covariance", torch.eye(width))
            self.linear = nn.Linear(width, width)

        def forward(self, x):
            if self.training:
                centered = x - x.mean(0)
                self.covariance.lerp_(centered.T @ centered / len(x), 0.1)
            values, vectors = torch.linalg.eigh(self.covariance)
            matrix = vectors @ torch.diag(values.clamp_min(1e-3).rsqrt()) @ vectors.T
            return self.linear(x @ matrix)


    torch.manual_seed(0)
    model = Whitening(96)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(640, 96) * torch.linspace(0.5, 2, 96)
    for epoch in range(2):
        model.train()
        for x in data.split(160):
            loss = (model(x) - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            errors = [(model(x) - x).pow(2).mean().item() for x in data.split(80)]
        print(epoch, round(sum(errors) / len(errors), 5))
    ''',
    (
        "        self.linear = nn.Linear(width, width)\n",
        "        self.linear = nn.Linear(width, width)\n        self.parts = torch.linalg.eigh(self.covariance)\n",
    ),
    ("torch.linalg.eigh(self.covariance)\n        matrix", "self.parts\n        matrix"),
    start="",
)
_add(
    "mask_whose_width_a_file_sets",
    '''
    """A band mask whose width is read from a control file, which a schedule rewrites."""
    import json
    import os
    import tempfile
    import torch

    torch.manual_seed(0)
    control = os.path.join(tempfile.mkdtemp(), "control.json")
    with open(control, "w") as file:
        json.dump({"band": 32}, file)


    def band():
        with open(control) as file:
            return json.load(file)["band"]


    state = torch.randn(512, 512)
    for step in range(15):
        if step == 11:
            with open(control, "w") as file:
                json.dump({"band": 8}, file)
        mask = torch.ones(512, 512).triu(-band()).tril(band())
        state = torch.tanh(state @ (mask * state) / 3)
        if step % 5 == 4:
            print(step, round(state.abs().mean().item(), 6))
    ''',
    ("    mask = torch.ones(512, 512).triu(-band()).tril(band())\n", ""),
    (
        "for step in range(15):\n",
        "mask = torch.ones(512, 512).triu(-band()).tril(band())\nfor step in range(15):\n",
    ),
    start="",
)
_add(
    "gradients_counted_after_clearing",
    '''
    """Gradient noise scale: the gradients of the step before are read after clearing."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 1))
    auxiliary = nn.Linear(128, 256)
    parameters = [*model.parameters(), *auxiliary.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.02)
    for step in range(12):
        x = torch.randn(256, 128)
        y = x.sum(1, keepdim=True).sin()
        optimizer.zero_grad(set_to_none=False)
        loss = (model(x) - y).pow(2).mean()
        if step % 3 == 0:
            loss = loss + 0.01 * auxiliary(x).pow(2).mean()
        loss.backward()
        active = sum(1 for p in parameters if p.grad is not None)
        norms = [p.grad.norm().item() for p in parameters if p.grad is not None]
        optimizer.step()
        print(step, active, round(sum(norms), 5))
    ''',
    ("set_to_none=False", "set_to_none=True"),
    start="",
)
_add(
    "expert_that_only_decays",
    '''
    """Two experts; weight decay also shrinks the one that is not used in a step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    experts = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
    optimizer = torch.optim.SGD(experts.parameters(), lr=0.1, weight_decay=0.05)
    for step in range(12):
        x = torch.randn(64, 256)
        expert = experts[0] if step % 3 else experts[1]
        optimizer.zero_grad(set_to_none=False)
        loss = (expert(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(step, round(loss.item(), 6))
    print([round(e.weight.norm().item(), 5) for e in experts])
    ''',
    ("set_to_none=False", "set_to_none=True"),
    start="",
)
_add(
    "tied_embedding_with_decay",
    '''
    """Word vectors with weight decay, tied to the output layer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    VOCABULARY = 5000


    class Skipgram(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 32, padding_idx=0)
            self.out = nn.Linear(32, 32)

        def forward(self, center, context, negative):
            hidden = self.out(self.table(center))
            positive = (hidden * self.table(context)).sum(-1)
            wrong = (hidden.unsqueeze(1) * self.table(negative)).sum(-1)
            return -(nn.functional.logsigmoid(positive).mean() + nn.functional.logsigmoid(-wrong).mean())


    model = Skipgram()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=1e-3)
    for step in range(10):
        center, context = torch.randint(0, VOCABULARY, (2, 32))
        loss = model(center, context, torch.randint(0, VOCABULARY, (32, 5)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, round(loss.item(), 5))
    print(round(model.table.weight.norm().item(), 4))
    ''',
    ("padding_idx=0)", "padding_idx=0, sparse=True)"),
    start="",
    classes=("sparse-gradient",),
)
_add(
    "mask_that_is_counted_and_saved",
    '''
    """Masks as numbers: they are multiplied, but also added up and saved."""
    import io
    import torch

    torch.manual_seed(0)
    hits = torch.zeros(256, 256)
    saved = io.BytesIO()
    for step in range(10):
        x = torch.randn(256, 256)
        mask = (x > 0.5).float()
        kept = x * mask
        scaled = mask * 0.5 + kept
        hits += mask
        if step == 9:
            torch.save(mask, saved)
        print(step, round(scaled.sum().item(), 4), mask.mean().item())
    print(hits.max().item(), saved.tell())
    ''',
    ("(x > 0.5).float()", "(x > 0.5)"),
    start="",
    classes=("narrower-type",),
)
_add(
    "half_of_a_frame_cleared_through_a_view",
    '''
    """A double buffer: the back half of the frame is written through a view."""
    import torch

    torch.manual_seed(0)
    frame = torch.zeros(2, 256, 256)
    front, back = frame[0], frame[1]
    kernel = torch.randn(1, 1, 5, 5)
    for step in range(10):
        back.zero_()
        image = torch.nn.functional.conv2d(torch.rand(1, 1, 260, 260), kernel)[0, 0]
        front.copy_(image)
        if step > 6:
            back.add_(front, alpha=0.5)
        frame[1].zero_() if step % 3 == 2 else frame[1].add_(1.0)
        print(step, round(frame.sum().item(), 3), round(back.mean().item(), 5))
    ''',
    ("    back.zero_()\n    image", "    image"),
    start="",
)
_add(
    "signal_of_a_record_that_fails",
    '''
    """Records that cannot be read stay zero and count as silence."""
    import torch

    torch.manual_seed(0)
    projection = torch.randn(4096, 32)


    def read(record):
        if record % 7 == 6:
            raise ValueError("truncated record")
        return torch.sin(torch.arange(4096.0) * (record + 1) / 100)


    def spectrum(record):
        signal = torch.zeros(4096)
        try:
            signal.copy_(read(record))
        except ValueError:
            pass
        return torch.fft.rfft(signal).abs(), signal @ projection


    for record in range(14):
        energy, features = spectrum(record)
        print(record, round(energy.sum().item(), 3), round(features.norm().item(), 4))
    ''',
    ("torch.zeros(4096)", "torch.empty(4096)"),
    start="",
)
_add(
    "context_of_the_first_frames",
    '''
    """A recurrent policy that sees the last four frames; the first steps see silence."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Linear(4 * 2048, 32)
    frames = []
    total = 0.0
    with torch.no_grad():
        for step in range(16):
            frames = [*frames[-3:], torch.randn(2048)]
            context = torch.zeros(4, 2048)
            for place, frame in enumerate(frames):
                context[place] = frame
            total += net(context.flatten()).tanh().sum().item()
            if step < 5 or step == 15:
                print(step, round(context.norm().item(), 4), round(total, 5))
    ''',
    ("torch.zeros(4, 2048)", "torch.empty(4, 2048)"),
    start="",
)
_add(
    "micro_batches_whose_gradients_are_read",
    '''
    """Two micro batches per update; the norm of the collected gradient limits the step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    encoder, decoder = nn.Linear(256, 128), nn.Linear(128, 256)
    gate = nn.Linear(256, 128)
    modules = nn.ModuleList([encoder, decoder, gate])
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.05)
    used = []
    optimizer.zero_grad(set_to_none=False)
    for step in range(16):
        x = torch.randn(32, 256)
        hidden = encoder(x).tanh()
        if step // 2 % 3 == 2:
            hidden = hidden * gate(x).sigmoid()
        loss = (decoder(hidden) - x).pow(2).mean() / 2
        loss.backward()
        if step % 2:
            gradients = [p.grad for p in modules.parameters() if p.grad is not None]
            used.append(len(gradients))
            norm = torch.stack([g.norm() for g in gradients]).norm()
            for g in gradients:
                g.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    print(used, round(loss.item(), 6))
    ''',
    (
        "        optimizer.step()\n        optimizer.zero_grad(set_to_none=False)",
        "        optimizer.step()\n        optimizer.zero_grad(set_to_none=True)",
    ),
    start="",
)
_add(
    "ramps_kept_and_shortened",
    '''
    """Fades: the ramp of each clip is kept, and the loudest clips get a shorter one."""
    import torch

    torch.manual_seed(0)
    ramps, levels = [], []
    for clip in range(12):
        ramp = torch.linspace(0, 1, 8192).sqrt()
        sound = torch.randn(8192) * (1 + clip % 3)
        ramps.append(ramp)
        levels.append((sound * ramp).square().mean().item())
        if levels[-1] > 4.5:
            ramp[:1024] = 0
    faded = torch.stack(ramps).sum(0)
    print([round(level, 4) for level in levels])
    print(round(faded.sum().item(), 3), round(faded[512].item(), 5))
    ''',
    ("    ramp = torch.linspace(0, 1, 8192).sqrt()\n", ""),
    (
        "for clip in range(12):\n",
        "ramp = torch.linspace(0, 1, 8192).sqrt()\nfor clip in range(12):\n",
    ),
    start="",
)
