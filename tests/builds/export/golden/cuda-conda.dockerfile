# pytorch-2.13.0-cuda: pytorch 2.13.0
#
#   docker build --tag pytorch-2.13.0-cuda .
#   docker build --tag pytorch-2.13.0-cuda --target build .    (with trees and objects)
#
# Written by Torchyard from a plan. Not the same as there: the network is not cut off in
# steps that do not fetch, compiles are not held back by memory (set --build-arg JOBS=2 if
# they are killed), and of the checks only the import and the smoke tests are made.

# Base image: a current Debian
FROM debian:trixie-slim AS build
USER root

RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -- build-essential \
        bzip2 ca-certificates cmake curl git ninja-build patch pkg-config unzip xz-utils; \
    rm -rf /var/lib/apt/lists/*

# Assumed: micromamba can be had here; the newest release is taken.
RUN set -eu; \
    platform=linux-"$(uname -m | sed s/x86_64/64/)"; \
    curl -fL "https://micro.mamba.pm/api/micromamba/$platform/latest" | tar -xj -C /usr/local bin/micromamba

WORKDIR /opt/torchyard/pytorch-2.13.0-cuda
ENV HOME="/root"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV CONDA_PREFIX="/opt/torchyard/pytorch-2.13.0-cuda/env"
ENV PYTHONNOUSERSITE="1"
ENV CC="/opt/torchyard/pytorch-2.13.0-cuda/env/bin/x86_64-conda-linux-gnu-gcc"
ENV CXX="/opt/torchyard/pytorch-2.13.0-cuda/env/bin/x86_64-conda-linux-gnu-g++"
ENV CUDAHOSTCXX="/opt/torchyard/pytorch-2.13.0-cuda/env/bin/x86_64-conda-linux-gnu-g++"
ENV CMAKE_PREFIX_PATH="/opt/torchyard/pytorch-2.13.0-cuda/env"
ENV CPATH="/opt/torchyard/pytorch-2.13.0-cuda/env/include"
ENV LIBRARY_PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/lib"
ENV LD_LIBRARY_PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/lib"
ENV CUDA_HOME="/opt/torchyard/pytorch-2.13.0-cuda/env"

# environment/python: create the conda environment with micromamba
RUN set -eu; \
    unset CONDA_PREFIX PYTHONNOUSERSITE CC CXX CUDAHOSTCXX CMAKE_PREFIX_PATH CPATH LIBRARY_PATH \
        LD_LIBRARY_PATH CUDA_HOME; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    export CONDA_ALWAYS_YES=true; \
    export MAMBA_ALWAYS_YES=true; \
    mkdir -p -- /opt/torchyard/pytorch-2.13.0-cuda; \
    printf '%s\n' \
        '# Written by torchyard from the recipe; a change here is lost at the next build.' \
        channels: \
        '  - "nvidia/label/cuda-12.8.0"' \
        '  - "conda-forge"' \
        '  - "nodefaults"' \
        dependencies: \
        '  - "python"' \
        '  - "cuda-toolkit=12.8.0"' \
        '  - "magma=2.9"' \
        '  - "ninja"' \
        '  - "pip"' \
        '  - "gcc_linux-64=13.3.0"' \
        '  - "gxx_linux-64=13.3.0"' \
        '  - "cmake>=3.27,<4"' \
        >/opt/torchyard/pytorch-2.13.0-cuda/environment.yml.part; \
    mv -T -- /opt/torchyard/pytorch-2.13.0-cuda/environment.yml.part \
        /opt/torchyard/pytorch-2.13.0-cuda/environment.yml; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    rm -rf -- /opt/torchyard/pytorch-2.13.0-cuda/env; \
    /usr/local/bin/micromamba create --yes --file /opt/torchyard/pytorch-2.13.0-cuda/environment.yml \
        --prefix /opt/torchyard/pytorch-2.13.0-cuda/env

# environment/packages: install the Python packages
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    /opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -m pip install --no-input \
        --disable-pip-version-check -- filelock 'typing-extensions>=4.10' networkx jinja2 fsspec \
        'sympy>=1.13.3' 'setuptools>=77.0.3,<82' 'cmake>=3.27' ninja numpy packaging pyyaml requests \
        six build

# pytorch/fetch: fetch git https://github.com/pytorch/pytorch at v2.13.0
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset CONDA_PREFIX PYTHONNOUSERSITE CC CXX CUDAHOSTCXX CMAKE_PREFIX_PATH CPATH LIBRARY_PATH \
        LD_LIBRARY_PATH CUDA_HOME; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    rm -rf -- /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4.part; \
    mkdir -p -- /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4.part; \
    cd /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/pytorch; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'pytorch: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v2.13.0 || missing v2.13.0'"$nl"\
'git checkout -q --detach FETCH_HEAD'"$nl"\
'git submodule --quiet sync --recursive'"$nl"\
'git submodule update --init --recursive --depth 1 || {'"$nl"\
'  echo "no shallow submodules from this server: fetching them whole"'"$nl"\
'  git submodule deinit -q --force --all'"$nl"\
'  rm -rf .git/modules'"$nl"\
'  git submodule update --init --recursive'"$nl"\
'}'; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    rm -rf -- /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4; \
    mv -T -- /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4.part \
        /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4

# pytorch/tree: make the working copy
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    rm -rf /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.part \
        /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch; \
    mkdir -p /opt/torchyard/pytorch-2.13.0-cuda/trees; \
    cp -a --reflink=auto /opt/torchyard/pytorch-2.13.0-cuda/sources/pytorch-2.13.0-a35c2a6407f4 \
        /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.part; \
    mv /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.part \
        /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch

# Compiles at once; one for each core without a number.
ARG JOBS=4

# pytorch/build: compile and pack the wheel
RUN set -eu; \
    export BUILD_TEST=0; \
    export USE_CCACHE=0; \
    export USE_CUDA=1; \
    export USE_ROCM=0; \
    export USE_MAGMA=1; \
    export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    rm -rf /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.dist; \
    mkdir -p /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.dist; \
    cd /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch; \
    /opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -m build --wheel --no-isolation \
        --skip-dependency-check --outdir /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.dist

# pytorch/install: install the wheel and keep a copy
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    mkdir -p /opt/torchyard/pytorch-2.13.0-cuda/wheels; \
    sh -c '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit'"$nl"\
'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done'"$nl"\
'cp "$2"/*.whl "$3"/' sh /opt/torchyard/pytorch-2.13.0-cuda/env/bin/python \
        /opt/torchyard/pytorch-2.13.0-cuda/trees/pytorch.dist \
        /opt/torchyard/pytorch-2.13.0-cuda/wheels

# pytorch/verify: check the result
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    rm -rf -- /opt/torchyard/pytorch-2.13.0-cuda/check; \
    mkdir -p -- /opt/torchyard/pytorch-2.13.0-cuda/check; \
    cd /opt/torchyard/pytorch-2.13.0-cuda/check; \
    /opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -I -c 'import torch'

# Every Python package, for the record.
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.13.0-cuda; \
    sh -c '"$1" -m pip freeze --all >"$2.part" && mv -T -- "$2.part" "$2"' freeze \
        /opt/torchyard/pytorch-2.13.0-cuda/env/bin/python \
        /opt/torchyard/pytorch-2.13.0-cuda/freeze.txt

# No GPU is there while an image is built; run this file where one is.
RUN set -eu; \
    mkdir -p -- /opt/torchyard/pytorch-2.13.0-cuda; \
    printf '%s\n' \
        '#!/bin/sh' \
        '# Checks this build where there is a GPU.' \
        'set -eu' \
        'cd "$(mktemp -d)"' \
        '/opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -I -c '"'"'import torch'"'"'' \
        '/opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -I -c '"'"'import torch' \
        'a = torch.randn(64, 64, requires_grad=True)' \
        '(a @ a).sum().backward()' \
        'expected = a.detach().sum(0).unsqueeze(1) + a.detach().sum(1).unsqueeze(0)' \
        'torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-4)'"'"'' \
        '/opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -I -c '"'"'import torch' \
        'torch.manual_seed(0)' \
        'model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2))' \
        'data, wanted = torch.randn(8, 3, 10, 10), torch.randint(0, 2, (8,))' \
        'model(data)' \
        'optimizer = torch.optim.SGD(model.parameters(), lr=0.1)' \
        'losses = []' \
        'for _ in range(5):' \
        '    optimizer.zero_grad()' \
        '    loss = torch.nn.functional.cross_entropy(model(data), wanted)' \
        '    loss.backward()' \
        '    optimizer.step()' \
        '    losses.append(loss.item())' \
        'assert losses[-1] < losses[0], losses'"'"'' \
        '/opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -I -c '"'"'import torch' \
        'a = torch.randn(20, 20, dtype=torch.float64)' \
        'torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(20, dtype=torch.float64))'"'"'' \
        '/opt/torchyard/pytorch-2.13.0-cuda/env/bin/python -I -c '"'"'import torch' \
        'assert torch.version.cuda, "built without CUDA"' \
        'assert torch.cuda.is_available(), "no device, or the driver is too old"' \
        'assert torch.ones(4, device="cuda").sum().item() == 4'"'"'' \
        >/opt/torchyard/pytorch-2.13.0-cuda/check.sh.part; \
    chmod +x -- /opt/torchyard/pytorch-2.13.0-cuda/check.sh.part; \
    mv -T -- /opt/torchyard/pytorch-2.13.0-cuda/check.sh.part \
        /opt/torchyard/pytorch-2.13.0-cuda/check.sh

ENV PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV CONDA_PREFIX="/opt/torchyard/pytorch-2.13.0-cuda/env"
ENV PYTHONNOUSERSITE="1"
ENV LD_LIBRARY_PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/lib"
ENV CUDA_HOME="/opt/torchyard/pytorch-2.13.0-cuda/env"


FROM debian:trixie-slim AS runtime
USER root
RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -- libgomp1; \
    rm -rf /var/lib/apt/lists/*
COPY --from=build ["/opt/torchyard/pytorch-2.13.0-cuda/env", "/opt/torchyard/pytorch-2.13.0-cuda/env"]
COPY --from=build ["/opt/torchyard/pytorch-2.13.0-cuda/freeze.txt", "/opt/torchyard/pytorch-2.13.0-cuda/freeze.txt"]
COPY --from=build ["/opt/torchyard/pytorch-2.13.0-cuda/wheels", "/opt/torchyard/pytorch-2.13.0-cuda/wheels"]
COPY --from=build ["/opt/torchyard/pytorch-2.13.0-cuda/check.sh", "/opt/torchyard/pytorch-2.13.0-cuda/check.sh"]
WORKDIR /opt/torchyard/pytorch-2.13.0-cuda
ENV PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV CONDA_PREFIX="/opt/torchyard/pytorch-2.13.0-cuda/env"
ENV PYTHONNOUSERSITE="1"
ENV LD_LIBRARY_PATH="/opt/torchyard/pytorch-2.13.0-cuda/env/lib"
ENV CUDA_HOME="/opt/torchyard/pytorch-2.13.0-cuda/env"

CMD ["/opt/torchyard/pytorch-2.13.0-cuda/env/bin/python"]
