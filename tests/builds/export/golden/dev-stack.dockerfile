# dev-stack-main: pytorch main, torchvision main, torchaudio main, torchbench main
#
#   docker build --tag dev-stack-main .
#   docker build --tag dev-stack-main --target build .    (with trees and objects)
#
# Written by Torchyard from a plan. Not the same as there: the network is not cut off in
# steps that do not fetch, compiles are not held back by memory (set --build-arg JOBS=2 if
# they are killed), and of the checks only the import and the smoke tests are made.

# Base image: Python 3.12 as in the plan, on Debian trixie
FROM python:3.12-slim-trixie AS build
USER root

RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -- build-essential \
        ca-certificates cmake curl git ninja-build patch pkg-config unzip xz-utils; \
    rm -rf /var/lib/apt/lists/*

WORKDIR /opt/torchyard/dev-stack-main
ENV PATH="/opt/torchyard/dev-stack-main/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV HOME="/root"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV VIRTUAL_ENV="/opt/torchyard/dev-stack-main/env"
ENV PYTHONNOUSERSITE="1"

# environment/python: create the virtual environment (Python 3.12.3)
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/env; \
    cd /opt/torchyard/dev-stack-main; \
    python3 -m venv --clear -- /opt/torchyard/dev-stack-main/env

# environment/packages: install the Python packages
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/env; \
    cd /opt/torchyard/dev-stack-main; \
    /opt/torchyard/dev-stack-main/env/bin/python -m pip install --no-input \
        --disable-pip-version-check -- filelock 'typing-extensions>=4.10' networkx jinja2 fsspec \
        'sympy>=1.13.3' numpy pillow ninja 'cmake<4' 'scikit-build-core>=1.0' 'cmake>=3.27' \
        packaging pyyaml requests six 'setuptools<82' wheel cmake

# pytorch/fetch: fetch git https://github.com/pytorch/pytorch at main
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f.part; \
    mkdir -p -- /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f.part; \
    cd /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/pytorch; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'pytorch: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --tags origin '"'"'+refs/heads/*:refs/remotes/origin/*'"'"' || missing main'"$nl"\
'if git fetch origin main; then git checkout -q --detach FETCH_HEAD'"$nl"\
'else git checkout -q --detach main -- || missing main; fi'"$nl"\
'git submodule --quiet sync --recursive'"$nl"\
'git submodule update --init --recursive'; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f; \
    mv -T -- /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f.part \
        /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f

# pytorch/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/env; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf /opt/torchyard/dev-stack-main/trees/pytorch.part \
        /opt/torchyard/dev-stack-main/trees/pytorch; \
    mkdir -p /opt/torchyard/dev-stack-main/trees; \
    cp -a --reflink=auto /opt/torchyard/dev-stack-main/sources/pytorch-main-d7c111bd715f \
        /opt/torchyard/dev-stack-main/trees/pytorch.part; \
    mv /opt/torchyard/dev-stack-main/trees/pytorch.part /opt/torchyard/dev-stack-main/trees/pytorch

# Compiles at once; one for each core without a number.
ARG JOBS=4

# pytorch/build: compile and install in place
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/env; \
    export BUILD_TEST=0; \
    export USE_CCACHE=0; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/dev-stack-main/trees/pytorch/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/dev-stack-main/trees/pytorch; \
    /opt/torchyard/dev-stack-main/env/bin/python -m pip install --no-build-isolation --no-deps \
        --verbose --editable .

# pytorch/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/env; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/check; \
    mkdir -p -- /opt/torchyard/dev-stack-main/check; \
    cd /opt/torchyard/dev-stack-main/check; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(64, 64, requires_grad=True)'"$nl"\
'(a @ a).sum().backward()'"$nl"\
'expected = a.detach().sum(0).unsqueeze(1) + a.detach().sum(1).unsqueeze(0)'"$nl"\
'torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-4)'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'"$nl"\
'torch.manual_seed(0)'"$nl"\
'model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2))'"$nl"\
'data, wanted = torch.randn(8, 3, 10, 10), torch.randint(0, 2, (8,))'"$nl"\
'model(data)'"$nl"\
'optimizer = torch.optim.SGD(model.parameters(), lr=0.1)'"$nl"\
'losses = []'"$nl"\
'for _ in range(5):'"$nl"\
'    optimizer.zero_grad()'"$nl"\
'    loss = torch.nn.functional.cross_entropy(model(data), wanted)'"$nl"\
'    loss.backward()'"$nl"\
'    optimizer.step()'"$nl"\
'    losses.append(loss.item())'"$nl"\
'assert losses[-1] < losses[0], losses'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(20, 20, dtype=torch.float64)'"$nl"\
'torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(20, dtype=torch.float64))'

# torchvision/fetch: fetch git https://github.com/pytorch/vision at main
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb.part; \
    mkdir -p -- /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb.part; \
    cd /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/vision; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'torchvision: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin main || missing main'"$nl"\
'git checkout -q --detach FETCH_HEAD'; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb; \
    mv -T -- /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb.part \
        /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb

# torchvision/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf /opt/torchyard/dev-stack-main/trees/torchvision.part \
        /opt/torchyard/dev-stack-main/trees/torchvision; \
    mkdir -p /opt/torchyard/dev-stack-main/trees; \
    cp -a --reflink=auto /opt/torchyard/dev-stack-main/sources/torchvision-main-26d4566518cb \
        /opt/torchyard/dev-stack-main/trees/torchvision.part; \
    mv /opt/torchyard/dev-stack-main/trees/torchvision.part \
        /opt/torchyard/dev-stack-main/trees/torchvision

# torchvision/build: compile and install in place
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export FORCE_CUDA=0; \
    export TORCHVISION_USE_PNG=0; \
    export TORCHVISION_USE_JPEG=0; \
    export TORCHVISION_USE_WEBP=0; \
    export TORCHVISION_USE_VIDEO_CODEC=0; \
    export TORCHVISION_USE_FFMPEG=0; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/dev-stack-main/trees/torchvision/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/dev-stack-main/trees/torchvision; \
    /opt/torchyard/dev-stack-main/env/bin/python setup.py develop --no-deps

# torchvision/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/check; \
    mkdir -p -- /opt/torchyard/dev-stack-main/check; \
    cd /opt/torchyard/dev-stack-main/check; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torchvision'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])'"$nl"\
'kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)'"$nl"\
'assert kept.tolist() == [0, 2], kept'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'model = torchvision.models.resnet18(weights=None).eval()'"$nl"\
'assert model(torch.randn(1, 3, 64, 64)).shape == (1, 1000)'

# torchaudio/fetch: fetch git https://github.com/pytorch/audio at main
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f.part; \
    mkdir -p -- /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f.part; \
    cd /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/audio; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'torchaudio: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin main || missing main'"$nl"\
'git checkout -q --detach FETCH_HEAD'"$nl"\
'git submodule --quiet sync --recursive'"$nl"\
'git submodule update --init --recursive --depth 1 || {'"$nl"\
'  echo "no shallow submodules from this server: fetching them whole"'"$nl"\
'  git submodule deinit -q --force --all'"$nl"\
'  rm -rf .git/modules'"$nl"\
'  git submodule update --init --recursive'"$nl"\
'}'; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f; \
    mv -T -- /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f.part \
        /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f

# torchaudio/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf /opt/torchyard/dev-stack-main/trees/torchaudio.part \
        /opt/torchyard/dev-stack-main/trees/torchaudio; \
    mkdir -p /opt/torchyard/dev-stack-main/trees; \
    cp -a --reflink=auto /opt/torchyard/dev-stack-main/sources/torchaudio-main-54fa12a8530f \
        /opt/torchyard/dev-stack-main/trees/torchaudio.part; \
    mv /opt/torchyard/dev-stack-main/trees/torchaudio.part \
        /opt/torchyard/dev-stack-main/trees/torchaudio

# torchaudio/build: compile and install in place
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export USE_CUDA=0; \
    export BUILD_SOX=0; \
    export USE_FFMPEG=0; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/dev-stack-main/trees/torchaudio/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/dev-stack-main/trees/torchaudio; \
    /opt/torchyard/dev-stack-main/env/bin/python setup.py develop --no-deps

# torchaudio/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/check; \
    mkdir -p -- /opt/torchyard/dev-stack-main/check; \
    cd /opt/torchyard/dev-stack-main/check; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torchaudio'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch, torchaudio'"$nl"\
'assert torchaudio.transforms.Spectrogram(n_fft=64)(torch.randn(1, 1000)).shape[1] == 33'

# torchbench/fetch: fetch git https://github.com/pytorch/benchmark at main
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f.part; \
    mkdir -p -- /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f.part; \
    cd /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/benchmark; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'torchbench: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin main || missing main'"$nl"\
'git checkout -q --detach FETCH_HEAD'"$nl"\
'git submodule --quiet sync --recursive'"$nl"\
'git submodule update --init --recursive --depth 1 || {'"$nl"\
'  echo "no shallow submodules from this server: fetching them whole"'"$nl"\
'  git submodule deinit -q --force --all'"$nl"\
'  rm -rf .git/modules'"$nl"\
'  git submodule update --init --recursive'"$nl"\
'}'; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf -- /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f; \
    mv -T -- /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f.part \
        /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f

# torchbench/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export PYTHONPATH=/opt/torchyard/dev-stack-main/trees/torchbench; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    cd /opt/torchyard/dev-stack-main; \
    rm -rf /opt/torchyard/dev-stack-main/trees/torchbench.part \
        /opt/torchyard/dev-stack-main/trees/torchbench; \
    mkdir -p /opt/torchyard/dev-stack-main/trees; \
    cp -a --reflink=auto /opt/torchyard/dev-stack-main/sources/torchbench-main-099925ff3e9f \
        /opt/torchyard/dev-stack-main/trees/torchbench.part; \
    mv /opt/torchyard/dev-stack-main/trees/torchbench.part \
        /opt/torchyard/dev-stack-main/trees/torchbench

# torchbench/requirements: install the requirement files
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/dev-stack-main/prefix:/opt/torchyard/dev-stack-main/env; \
    export PYTHONPATH=/opt/torchyard/dev-stack-main/trees/torchbench; \
    export CPATH=/opt/torchyard/dev-stack-main/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/dev-stack-main/prefix/lib; \
    cd /opt/torchyard/dev-stack-main/trees/torchbench; \
    /opt/torchyard/dev-stack-main/env/bin/python -m pip install --no-input \
        -r /opt/torchyard/dev-stack-main/trees/torchbench/requirements.txt

# Every Python package, for the record.
RUN set -eu; \
    cd /opt/torchyard/dev-stack-main; \
    sh -c '"$1" -m pip freeze --all >"$2.part" && mv -T -- "$2.part" "$2"' freeze \
        /opt/torchyard/dev-stack-main/env/bin/python /opt/torchyard/dev-stack-main/freeze.txt

ENV PATH="/opt/torchyard/dev-stack-main/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/torchyard/dev-stack-main/env"
ENV PYTHONNOUSERSITE="1"
ENV LD_LIBRARY_PATH="/opt/torchyard/dev-stack-main/prefix/lib"
ENV PYTHONPATH="/opt/torchyard/dev-stack-main/trees/torchbench"


FROM python:3.12-slim-trixie AS runtime
USER root
RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -- libgomp1; \
    rm -rf /var/lib/apt/lists/*
COPY --from=build ["/opt/torchyard/dev-stack-main/trees/pytorch", "/opt/torchyard/dev-stack-main/trees/pytorch"]
COPY --from=build ["/opt/torchyard/dev-stack-main/trees/torchvision", "/opt/torchyard/dev-stack-main/trees/torchvision"]
COPY --from=build ["/opt/torchyard/dev-stack-main/trees/torchaudio", "/opt/torchyard/dev-stack-main/trees/torchaudio"]
COPY --from=build ["/opt/torchyard/dev-stack-main/trees/torchbench", "/opt/torchyard/dev-stack-main/trees/torchbench"]
COPY --from=build ["/opt/torchyard/dev-stack-main/env", "/opt/torchyard/dev-stack-main/env"]
COPY --from=build ["/opt/torchyard/dev-stack-main/freeze.txt", "/opt/torchyard/dev-stack-main/freeze.txt"]
WORKDIR /opt/torchyard/dev-stack-main
ENV PATH="/opt/torchyard/dev-stack-main/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/torchyard/dev-stack-main/env"
ENV PYTHONNOUSERSITE="1"
ENV LD_LIBRARY_PATH="/opt/torchyard/dev-stack-main/prefix/lib"
ENV PYTHONPATH="/opt/torchyard/dev-stack-main/trees/torchbench"
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    cd "$(mktemp -d)"; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(64, 64, requires_grad=True)'"$nl"\
'(a @ a).sum().backward()'"$nl"\
'expected = a.detach().sum(0).unsqueeze(1) + a.detach().sum(1).unsqueeze(0)'"$nl"\
'torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-4)'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'"$nl"\
'torch.manual_seed(0)'"$nl"\
'model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2))'"$nl"\
'data, wanted = torch.randn(8, 3, 10, 10), torch.randint(0, 2, (8,))'"$nl"\
'model(data)'"$nl"\
'optimizer = torch.optim.SGD(model.parameters(), lr=0.1)'"$nl"\
'losses = []'"$nl"\
'for _ in range(5):'"$nl"\
'    optimizer.zero_grad()'"$nl"\
'    loss = torch.nn.functional.cross_entropy(model(data), wanted)'"$nl"\
'    loss.backward()'"$nl"\
'    optimizer.step()'"$nl"\
'    losses.append(loss.item())'"$nl"\
'assert losses[-1] < losses[0], losses'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(20, 20, dtype=torch.float64)'"$nl"\
'torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(20, dtype=torch.float64))'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torchvision'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])'"$nl"\
'kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)'"$nl"\
'assert kept.tolist() == [0, 2], kept'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'model = torchvision.models.resnet18(weights=None).eval()'"$nl"\
'assert model(torch.randn(1, 3, 64, 64)).shape == (1, 1000)'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torchaudio'; \
    /opt/torchyard/dev-stack-main/env/bin/python -I -c 'import torch, torchaudio'"$nl"\
'assert torchaudio.transforms.Spectrogram(n_fft=64)(torch.randn(1, 1000)).shape[1] == 33'

CMD ["/opt/torchyard/dev-stack-main/env/bin/python"]
