# arm-stack-2.5.0: arm-compute-library 25.02.1, openblas 0.3.27, pytorch 2.5.0, torchvision 0.20.0, torchaudio 2.5.0
#
#   docker build --tag arm-stack-2.5.0 .
#   docker build --tag arm-stack-2.5.0 --target build .    (with trees and objects)
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
        ca-certificates cmake curl git libopenmpi-dev ninja-build openmpi-bin patch pkg-config unzip \
        xz-utils; \
    rm -rf /var/lib/apt/lists/*

WORKDIR /opt/torchyard/arm-stack-2.5.0
ENV PATH="/opt/torchyard/arm-stack-2.5.0/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV HOME="/root"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV VIRTUAL_ENV="/opt/torchyard/arm-stack-2.5.0/env"
ENV PYTHONNOUSERSITE="1"

# environment/python: create the virtual environment (Python 3.12.3)
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    python3 -m venv --clear -- /opt/torchyard/arm-stack-2.5.0/env

# environment/packages: install the Python packages
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -m pip install --no-input \
        --disable-pip-version-check -- scons filelock 'typing-extensions>=4.10' networkx jinja2 \
        fsspec sympy==1.13.1 numpy pillow ninja 'cmake<4' 'setuptools<80' wheel astunparse pyyaml \
        'cmake>=3.18,<4' 'typing-extensions>=4.8' requests

# arm-compute-library/fetch: fetch git https://github.com/ARM-software/ComputeLibrary at v25.02.1
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940.part; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940.part; \
    cd /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/ARM-software/ComputeLibrary; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'arm-compute-library: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v25.02.1 || missing v25.02.1'"$nl"\
'git checkout -q --detach FETCH_HEAD'; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940; \
    mv -T -- /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940.part \
        /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940

# arm-compute-library/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library.part \
        /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees; \
    cp -a --reflink=auto \
        /opt/torchyard/arm-stack-2.5.0/sources/arm-compute-library-25.02.1-e4cb704be940 \
        /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library.part; \
    mv /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library.part \
        /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library

# Compiles at once; one for each core without a number.
ARG JOBS=4

# arm-compute-library/build: compile
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    sh -c 'exec scons -j "${CMAKE_BUILD_PARALLEL_LEVEL:-1}" "$@"' scons Werror=0 debug=0 neon=1 \
        opencl=0 embed_kernels=0 os=linux openmp=1 cppthreads=0 arch=armv8.2-a multi_isa=1 \
        build=native fixed_format_kernels=1 benchmark_tests=0 validation_tests=0 examples=0

# arm-compute-library/verify: check the result
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/check; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/check; \
    cd /opt/torchyard/arm-stack-2.5.0/check; \
    test -e /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library/build/libarm_compute.so

# openblas/fetch: fetch git https://github.com/OpenMathLib/OpenBLAS at v0.3.27
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1.part; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1.part; \
    cd /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/OpenMathLib/OpenBLAS; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'openblas: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v0.3.27 || missing v0.3.27'"$nl"\
'git checkout -q --detach FETCH_HEAD'; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1; \
    mv -T -- /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1.part \
        /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1

# openblas/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/openblas.part \
        /opt/torchyard/arm-stack-2.5.0/trees/openblas; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees; \
    cp -a --reflink=auto /opt/torchyard/arm-stack-2.5.0/sources/openblas-0.3.27-4e8d7ba7efd1 \
        /opt/torchyard/arm-stack-2.5.0/trees/openblas.part; \
    mv /opt/torchyard/arm-stack-2.5.0/trees/openblas.part \
        /opt/torchyard/arm-stack-2.5.0/trees/openblas

# openblas/configure: configure with CMake
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -f /opt/torchyard/arm-stack-2.5.0/trees/openblas/build/CMakeCache.txt; \
    cmake -S /opt/torchyard/arm-stack-2.5.0/trees/openblas \
        -B /opt/torchyard/arm-stack-2.5.0/trees/openblas/build -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_INSTALL_PREFIX=/opt/torchyard/arm-stack-2.5.0/prefix -DCMAKE_INSTALL_LIBDIR=lib \
        -DBUILD_SHARED_LIBS=ON -DBUILD_STATIC_LIBS=OFF -DBUILD_TESTING=OFF -DUSE_OPENMP=ON

# openblas/build: compile
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    cmake --build /opt/torchyard/arm-stack-2.5.0/trees/openblas/build

# openblas/install: install into the prefix
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    cmake --install /opt/torchyard/arm-stack-2.5.0/trees/openblas/build

# openblas/verify: check the result
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/env; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/check; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/check; \
    cd /opt/torchyard/arm-stack-2.5.0/check; \
    test -e /opt/torchyard/arm-stack-2.5.0/prefix/lib/libopenblas.so; \
    test -e /opt/torchyard/arm-stack-2.5.0/prefix/include/openblas/cblas.h

# pytorch/fetch: fetch git https://github.com/pytorch/pytorch at v2.5.0
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9.part; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9.part; \
    cd /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/pytorch; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'pytorch: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v2.5.0 || missing v2.5.0'"$nl"\
'git checkout -q --detach FETCH_HEAD'"$nl"\
'git submodule --quiet sync --recursive'"$nl"\
'git submodule update --init --recursive --depth 1 || {'"$nl"\
'  echo "no shallow submodules from this server: fetching them whole"'"$nl"\
'  git submodule deinit -q --force --all'"$nl"\
'  rm -rf .git/modules'"$nl"\
'  git submodule update --init --recursive'"$nl"\
'}'"$nl"\
'[ -e third_party/ideep/mkl-dnn/.git ] || { echo '"'"'no submodule at third_party/ideep/mkl-dnn: correct pytorch: source.git.overrides'"'"' >&2; exit 1; }'"$nl"\
'( cd third_party/ideep/mkl-dnn'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'pytorch: source.git.overrides."third_party/ideep/mkl-dnn"'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v3.7.1 || missing v3.7.1'"$nl"\
'git checkout -q --detach FETCH_HEAD'"$nl"\
'git submodule update --init --recursive )'; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9; \
    mv -T -- /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9.part \
        /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9

# pytorch/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export ACL_ROOT_DIR=/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    export OpenBLAS_HOME=/opt/torchyard/arm-stack-2.5.0/prefix; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/pytorch.part \
        /opt/torchyard/arm-stack-2.5.0/trees/pytorch; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees; \
    cp -a --reflink=auto /opt/torchyard/arm-stack-2.5.0/sources/pytorch-2.5.0-ef5b101313f9 \
        /opt/torchyard/arm-stack-2.5.0/trees/pytorch.part; \
    mv /opt/torchyard/arm-stack-2.5.0/trees/pytorch.part \
        /opt/torchyard/arm-stack-2.5.0/trees/pytorch

# pytorch/configure: configure
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export ACL_ROOT_DIR=/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    export OpenBLAS_HOME=/opt/torchyard/arm-stack-2.5.0/prefix; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export BUILD_TEST=0; \
    export USE_CCACHE=0; \
    export USE_NCCL=0; \
    export USE_CUDA=0; \
    export USE_ROCM=0; \
    export USE_FBGEMM=0; \
    export USE_MKLDNN=1; \
    export USE_MKLDNN_ACL=1; \
    export USE_OPENMP=1; \
    export BLAS=OpenBLAS; \
    export USE_MPI=1; \
    export CMAKE_POLICY_VERSION_MINIMUM=3.5; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/arm-stack-2.5.0/trees/pytorch/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -f /opt/torchyard/arm-stack-2.5.0/trees/pytorch/build/CMakeCache.txt; \
    cd /opt/torchyard/arm-stack-2.5.0/trees/pytorch; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python setup.py build --cmake-only

# pytorch/build: compile and pack the wheel
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export ACL_ROOT_DIR=/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    export OpenBLAS_HOME=/opt/torchyard/arm-stack-2.5.0/prefix; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export BUILD_TEST=0; \
    export USE_CCACHE=0; \
    export USE_NCCL=0; \
    export USE_CUDA=0; \
    export USE_ROCM=0; \
    export USE_FBGEMM=0; \
    export USE_MKLDNN=1; \
    export USE_MKLDNN_ACL=1; \
    export USE_OPENMP=1; \
    export BLAS=OpenBLAS; \
    export USE_MPI=1; \
    export CMAKE_POLICY_VERSION_MINIMUM=3.5; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/arm-stack-2.5.0/trees/pytorch/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/pytorch.dist; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees/pytorch.dist; \
    cd /opt/torchyard/arm-stack-2.5.0/trees/pytorch; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python setup.py bdist_wheel \
        --dist-dir /opt/torchyard/arm-stack-2.5.0/trees/pytorch.dist

# pytorch/install: install the wheel and keep a copy
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export ACL_ROOT_DIR=/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    export OpenBLAS_HOME=/opt/torchyard/arm-stack-2.5.0/prefix; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/wheels; \
    sh -c '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit'"$nl"\
'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done'"$nl"\
'cp "$2"/*.whl "$3"/' sh /opt/torchyard/arm-stack-2.5.0/env/bin/python \
        /opt/torchyard/arm-stack-2.5.0/trees/pytorch.dist /opt/torchyard/arm-stack-2.5.0/wheels

# pytorch/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export ACL_ROOT_DIR=/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library; \
    export OpenBLAS_HOME=/opt/torchyard/arm-stack-2.5.0/prefix; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/check; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/check; \
    cd /opt/torchyard/arm-stack-2.5.0/check; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(64, 64, requires_grad=True)'"$nl"\
'(a @ a).sum().backward()'"$nl"\
'expected = a.detach().sum(0).unsqueeze(1) + a.detach().sum(1).unsqueeze(0)'"$nl"\
'torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-4)'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'"$nl"\
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
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(20, 20, dtype=torch.float64)'"$nl"\
'torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(20, dtype=torch.float64))'

# torchvision/fetch: fetch git https://github.com/pytorch/vision at v0.20.0
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f.part; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f.part; \
    cd /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/vision; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'torchvision: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v0.20.0 || missing v0.20.0'"$nl"\
'git checkout -q --detach FETCH_HEAD'; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f; \
    mv -T -- /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f.part \
        /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f

# torchvision/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/torchvision.part \
        /opt/torchyard/arm-stack-2.5.0/trees/torchvision; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees; \
    cp -a --reflink=auto /opt/torchyard/arm-stack-2.5.0/sources/torchvision-0.20.0-083b5297a64f \
        /opt/torchyard/arm-stack-2.5.0/trees/torchvision.part; \
    mv /opt/torchyard/arm-stack-2.5.0/trees/torchvision.part \
        /opt/torchyard/arm-stack-2.5.0/trees/torchvision

# torchvision/build: compile and pack the wheel
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export FORCE_CUDA=0; \
    export TORCHVISION_USE_PNG=0; \
    export TORCHVISION_USE_JPEG=0; \
    export TORCHVISION_USE_WEBP=0; \
    export TORCHVISION_USE_VIDEO_CODEC=0; \
    export TORCHVISION_USE_FFMPEG=0; \
    export BUILD_VERSION=0.20.0; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/arm-stack-2.5.0/trees/torchvision/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/torchvision.dist; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees/torchvision.dist; \
    cd /opt/torchyard/arm-stack-2.5.0/trees/torchvision; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python setup.py bdist_wheel \
        --dist-dir /opt/torchyard/arm-stack-2.5.0/trees/torchvision.dist

# torchvision/install: install the wheel and keep a copy
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/wheels; \
    sh -c '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit'"$nl"\
'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done'"$nl"\
'cp "$2"/*.whl "$3"/' sh /opt/torchyard/arm-stack-2.5.0/env/bin/python \
        /opt/torchyard/arm-stack-2.5.0/trees/torchvision.dist /opt/torchyard/arm-stack-2.5.0/wheels

# torchvision/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/check; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/check; \
    cd /opt/torchyard/arm-stack-2.5.0/check; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torchvision'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])'"$nl"\
'kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)'"$nl"\
'assert kept.tolist() == [0, 2], kept'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'model = torchvision.models.resnet18(weights=None).eval()'"$nl"\
'assert model(torch.randn(1, 3, 64, 64)).shape == (1, 1000)'

# torchaudio/fetch: fetch git https://github.com/pytorch/audio at v2.5.0
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40.part; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40.part; \
    cd /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40.part; \
    GIT_TERMINAL_PROMPT=0 git init -q; \
    GIT_TERMINAL_PROMPT=0 git remote add -- origin https://github.com/pytorch/audio; \
    GIT_TERMINAL_PROMPT=0 sh -c 'set -eu'"$nl"\
'missing() {'"$nl"\
'  if git ls-remote -q origin HEAD >/dev/null 2>&1'"$nl"\
'  then echo "the repository has no revision $1: correct "'"'"'torchaudio: source.git.ref'"'"' >&2'"$nl"\
'  else echo "the repository cannot be read: see git'"'"'s own message above" >&2; fi'"$nl"\
'  exit 1'"$nl"\
'}'"$nl"\
'git fetch --depth 1 origin v2.5.0 || missing v2.5.0'"$nl"\
'git checkout -q --detach FETCH_HEAD'"$nl"\
'git submodule --quiet sync --recursive'"$nl"\
'git submodule update --init --recursive --depth 1 || {'"$nl"\
'  echo "no shallow submodules from this server: fetching them whole"'"$nl"\
'  git submodule deinit -q --force --all'"$nl"\
'  rm -rf .git/modules'"$nl"\
'  git submodule update --init --recursive'"$nl"\
'}'; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40; \
    mv -T -- /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40.part \
        /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40

# torchaudio/tree: make the working copy
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.part \
        /opt/torchyard/arm-stack-2.5.0/trees/torchaudio; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees; \
    cp -a --reflink=auto /opt/torchyard/arm-stack-2.5.0/sources/torchaudio-2.5.0-0fdf6491eb40 \
        /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.part; \
    mv /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.part \
        /opt/torchyard/arm-stack-2.5.0/trees/torchaudio

# torchaudio/build: compile and pack the wheel
RUN set -eu; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export USE_CUDA=0; \
    export BUILD_SOX=0; \
    export USE_FFMPEG=0; \
    export BUILD_VERSION=2.5.0; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/arm-stack-2.5.0/trees/torchaudio/build; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.dist; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.dist; \
    cd /opt/torchyard/arm-stack-2.5.0/trees/torchaudio; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python setup.py bdist_wheel \
        --dist-dir /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.dist

# torchaudio/install: install the wheel and keep a copy
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    mkdir -p /opt/torchyard/arm-stack-2.5.0/wheels; \
    sh -c '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit'"$nl"\
'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done'"$nl"\
'cp "$2"/*.whl "$3"/' sh /opt/torchyard/arm-stack-2.5.0/env/bin/python \
        /opt/torchyard/arm-stack-2.5.0/trees/torchaudio.dist /opt/torchyard/arm-stack-2.5.0/wheels

# torchaudio/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export CMAKE_PREFIX_PATH=/opt/torchyard/arm-stack-2.5.0/prefix:/opt/torchyard/arm-stack-2.5.0/env; \
    export CPATH=/opt/torchyard/arm-stack-2.5.0/prefix/include; \
    export LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    export LD_LIBRARY_PATH=/opt/torchyard/arm-stack-2.5.0/prefix/lib; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    rm -rf -- /opt/torchyard/arm-stack-2.5.0/check; \
    mkdir -p -- /opt/torchyard/arm-stack-2.5.0/check; \
    cd /opt/torchyard/arm-stack-2.5.0/check; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torchaudio'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch, torchaudio'"$nl"\
'assert torchaudio.transforms.Spectrogram(n_fft=64)(torch.randn(1, 1000)).shape[1] == 33'

# Every Python package, for the record.
RUN set -eu; \
    cd /opt/torchyard/arm-stack-2.5.0; \
    sh -c '"$1" -m pip freeze --all >"$2.part" && mv -T -- "$2.part" "$2"' freeze \
        /opt/torchyard/arm-stack-2.5.0/env/bin/python /opt/torchyard/arm-stack-2.5.0/freeze.txt

ENV PATH="/opt/torchyard/arm-stack-2.5.0/prefix/bin:/opt/torchyard/arm-stack-2.5.0/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/torchyard/arm-stack-2.5.0/env"
ENV PYTHONNOUSERSITE="1"
ENV LD_LIBRARY_PATH="/opt/torchyard/arm-stack-2.5.0/prefix/lib"


FROM python:3.12-slim-trixie AS runtime
USER root
RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -- libgomp1 \
        openmpi-bin; \
    rm -rf /var/lib/apt/lists/*
COPY --from=build ["/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library", "/opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library"]
COPY --from=build ["/opt/torchyard/arm-stack-2.5.0/prefix", "/opt/torchyard/arm-stack-2.5.0/prefix"]
COPY --from=build ["/opt/torchyard/arm-stack-2.5.0/env", "/opt/torchyard/arm-stack-2.5.0/env"]
COPY --from=build ["/opt/torchyard/arm-stack-2.5.0/freeze.txt", "/opt/torchyard/arm-stack-2.5.0/freeze.txt"]
COPY --from=build ["/opt/torchyard/arm-stack-2.5.0/wheels", "/opt/torchyard/arm-stack-2.5.0/wheels"]
WORKDIR /opt/torchyard/arm-stack-2.5.0
ENV PATH="/opt/torchyard/arm-stack-2.5.0/prefix/bin:/opt/torchyard/arm-stack-2.5.0/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/torchyard/arm-stack-2.5.0/env"
ENV PYTHONNOUSERSITE="1"
ENV LD_LIBRARY_PATH="/opt/torchyard/arm-stack-2.5.0/prefix/lib"
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    cd "$(mktemp -d)"; \
    test -e /opt/torchyard/arm-stack-2.5.0/trees/arm-compute-library/build/libarm_compute.so; \
    test -e /opt/torchyard/arm-stack-2.5.0/prefix/lib/libopenblas.so; \
    test -e /opt/torchyard/arm-stack-2.5.0/prefix/include/openblas/cblas.h; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(64, 64, requires_grad=True)'"$nl"\
'(a @ a).sum().backward()'"$nl"\
'expected = a.detach().sum(0).unsqueeze(1) + a.detach().sum(1).unsqueeze(0)'"$nl"\
'torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-4)'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'"$nl"\
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
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(20, 20, dtype=torch.float64)'"$nl"\
'torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(20, dtype=torch.float64))'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torchvision'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])'"$nl"\
'kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)'"$nl"\
'assert kept.tolist() == [0, 2], kept'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch, torchvision'"$nl"\
'model = torchvision.models.resnet18(weights=None).eval()'"$nl"\
'assert model(torch.randn(1, 3, 64, 64)).shape == (1, 1000)'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torchaudio'; \
    /opt/torchyard/arm-stack-2.5.0/env/bin/python -I -c 'import torch, torchaudio'"$nl"\
'assert torchaudio.transforms.Spectrogram(n_fft=64)(torch.randn(1, 1000)).shape[1] == 33'

CMD ["/opt/torchyard/arm-stack-2.5.0/env/bin/python"]
