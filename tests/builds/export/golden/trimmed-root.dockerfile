# pytorch-2.6.0-trimmed: pytorch 2.6.0
#
#   docker build --tag pytorch-2.6.0-trimmed .
#
# There is one stage only: the result needs the libraries it was built with.
#
# Written by Torchyard from a plan. Not the same as there: the network is not cut off in
# steps that do not fetch, compiles are not held back by memory (set --build-arg JOBS=2 if
# they are killed), and of the checks only the import and the smoke tests are made.

# Base image: the plan builds in a Debian trixie of its own; here the image is that Debian
FROM debian:trixie-slim AS build
USER root

RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -- ca-certificates \
        curl dpkg-dev git patch unzip xz-utils; \
    rm -rf /var/lib/apt/lists/*

# Build dependencies are found through source packages.
RUN set -eu; \
    for file in /etc/apt/sources.list.d/*.sources; do [ ! -f "$file" ] || sed -i 's/^Types: deb$/Types: deb deb-src/' "$file"; done; \
    [ ! -s /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >/etc/apt/sources.list.d/source-packages.list

WORKDIR /opt/torchyard/pytorch-2.6.0-trimmed
ENV HOME="/root"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV PATH="/opt/torchyard/pytorch-2.6.0-trimmed/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/torchyard/pytorch-2.6.0-trimmed/env"
ENV PYTHONNOUSERSITE="1"
ENV CMAKE_PREFIX_PATH="/opt/torchyard/pytorch-2.6.0-trimmed/env"

# environment/debian-packages: install compiler and libraries
RUN set -eu; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE CMAKE_PREFIX_PATH; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    export DEBIAN_FRONTEND=noninteractive; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    dpkg --configure -a; \
    apt-get update; \
    apt-get --yes --no-install-recommends --fix-broken install; \
    apt-get --yes --no-install-recommends install -- build-essential ccache cmake git ninja-build \
        pkg-config python3-dev python3-pip python3-venv; \
    apt-get --yes --no-install-recommends build-dep -- pytorch; \
    apt-get clean; \
    mkdir -p /var/lib/torchyard; \
    touch /var/lib/torchyard/debian-packages

# environment/python: create the virtual environment
RUN set -eu; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE CMAKE_PREFIX_PATH; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    /usr/bin/python3 -m venv --clear --system-site-packages \
        -- /opt/torchyard/pytorch-2.6.0-trimmed/env

# environment/packages: install the Python packages
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python -m pip install --no-input \
        --disable-pip-version-check -- filelock 'typing-extensions>=4.10' networkx jinja2 fsspec \
        sympy==1.13.1 'setuptools<80' wheel astunparse numpy ninja pyyaml 'cmake>=3.18,<4' requests

# pytorch/fetch: fetch pytorch from Debian (trixie), with Debian's patches
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    unset VIRTUAL_ENV PYTHONNOUSERSITE CMAKE_PREFIX_PATH; \
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    rm -rf -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part; \
    mkdir -p -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part; \
    mkdir -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part/files; \
    mkdir -p -- /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch; \
    printf '%s\n' \
        '#!/bin/sh' \
        '# Write an apt configuration of its own: sh write-apt-sources.sh FOLDER SUITE "deb deb-src"' \
        '#' \
        '# The mirrors, keys and options are this machine'"'"'s; the suite may be another one. An empty SUITE means' \
        '# the machine'"'"'s own suites. Everything apt keeps goes below FOLDER: `apt-get -c FOLDER/apt.conf`.' \
        'set -eu' \
        '' \
        'folder=$1 suite=$2 kinds=$3' \
        'case $folder in' \
        '    *[\"\;]*)' \
        '        echo "apt has no way to write the path $folder: choose another folder" >&2' \
        '        exit 1' \
        '        ;;' \
        esac \
        '' \
        'mkdir -p "$folder/state/lists/partial" "$folder/cache/archives/partial" "$folder/log" \' \
        '    "$folder/etc/sources.list.d" "$folder/etc/preferences.d" "$folder/etc/keys"' \
        ': >"$folder/state/status"' \
        '' \
        '# Every key apt trusts here: those in its folder, and those that single sources name.' \
        'for key in /etc/apt/trusted.gpg.d/*.gpg /etc/apt/trusted.gpg.d/*.asc \' \
        '    /usr/share/keyrings/debian-archive-keyring.gpg \' \
        '    $(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |' \
        '        sed -n -e '"'"'s/^[Ss]igned-[Bb]y: *\(\/[^ ]*\) *$/\1/p'"'"' -e '"'"'s/^deb.*[[ ]signed-by=\(\/[^] ]*\).*/\1/p'"'"'); do' \
        '    [ ! -f "$key" ] || cp -L -- "$key" "$folder/etc/keys/"' \
        done \
        '' \
        '# Mirrors of Debian, as far as apt knows whose they are. A suite that is not listed here is looked for' \
        '# where the plain suite of this machine is, and `other-security` where `own-security` is.' \
        'apt-get indextargets --format '"'"'$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)'"'"' '"'"'Created-By: Packages'"'"' |' \
        '    awk -v wanted="$suite" -v kinds="$kinds" '"'"'' \
        '        function pocket(name) { return index(name, "-") ? substr(name, index(name, "-") + 1) : "" }' \
        '        NF < 3 { next }' \
        '        { total++; uri[total] = $1; own[total] = $2; part[total] = $3; origin[total] = $4 }' \
        '        $4 == "Debian" { debian = 1 }' \
        '        $4 == "Debian" && $2 == wanted { listed = 1 }' \
        '        END {' \
        '            count = split(kinds, kind, " ")' \
        '            for (i = 1; i <= total; i++) {' \
        '                if (debian && origin[i] != "Debian") continue' \
        '                if (wanted == "") named = own[i]' \
        '                else if (listed ? own[i] == wanted : pocket(own[i]) == pocket(wanted)) named = wanted' \
        '                else continue' \
        '                for (k = 1; k <= count; k++) {' \
        '                    line = kind[k] " " uri[i] " " named " " part[i]' \
        '                    if (!seen[line]++) print line' \
        '                }' \
        '            }' \
        '        }'"'"' >"$folder/sources.list"' \
        'if [ ! -s "$folder/sources.list" ]; then' \
        '    echo "this machine'"'"'s apt configuration has no Debian mirror for suite ${suite:-(its own)}" >&2' \
        '    exit 1' \
        fi \
        '' \
        'cat >"$folder/apt.conf" <<END' \
        '#clear APT::Update::Pre-Invoke;' \
        '#clear APT::Update::Post-Invoke;' \
        '#clear APT::Update::Post-Invoke-Success;' \
        '#clear Acquire::Languages;' \
        'Dir::State "$folder/state";' \
        'Dir::State::lists "$folder/state/lists";' \
        'Dir::State::status "$folder/state/status";' \
        'Dir::State::extended_states "$folder/state/extended_states";' \
        'Dir::Cache "$folder/cache";' \
        'Dir::Cache::archives "$folder/cache/archives";' \
        'Dir::Cache::pkgcache "";' \
        'Dir::Cache::srcpkgcache "";' \
        'Dir::Etc::sourcelist "$folder/sources.list";' \
        'Dir::Etc::sourceparts "$folder/etc/sources.list.d";' \
        'Dir::Etc::preferences "$folder/etc/preferences";' \
        'Dir::Etc::preferencesparts "$folder/etc/preferences.d";' \
        'Dir::Etc::trusted "$folder/etc/none";' \
        'Dir::Etc::trustedparts "$folder/etc/keys";' \
        'Dir::Log "$folder/log";' \
        'Acquire::Languages "none";' \
        'APT::Sandbox::User "root";' \
        'APT::Get::Assume-Yes "true";' \
        END \
        >/opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/write-apt-sources.sh.part; \
    mv -T \
        -- \
        /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/write-apt-sources.sh.part \
        /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/write-apt-sources.sh; \
    sh /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/write-apt-sources.sh \
        /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch trixie 'deb deb-src'; \
    apt-get -c /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/apt.conf \
        -o Acquire::IndexTargets::deb::Packages::DefaultEnabled=false -o APT::Update::Error-Mode=any \
        update; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part/files; \
    sh -c \
        'apt-cache -c /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/apt.conf showsrc --only-source pytorch >index 2>/dev/null || true'"$nl"\
'if apt-get -c /opt/torchyard/pytorch-2.6.0-trimmed/downloads/apt/trixie/pytorch/apt.conf source --download-only --only-source pytorch 2>../errors; then cat ../errors; exit 0; else status=$?; fi'"$nl"\
'cat ../errors'"$nl"\
'sed -n '"'"'/^E: Failed to fetch .*  404 /{s/%2b/+/g;s/%7e/~/g;s/%3a/:/g'"$nl"\
's|^[^/]*//[^ ]*/\([^ /]*\) .*|the mirror lists \1 and does not have it (404): take another suite or version, upstream_only, or another mirror|p}'"'"' ../errors >&2'"$nl"\
'if grep -q '"'"'^E: Unable to find a source package'"'"' ../errors; then'"$nl"\
'  echo '"'"'no source package pytorch in trixie: correct pytorch: source.debian.package'"'"' >&2'"$nl"\
fi"$nl"\
'exit $status'; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part; \
    sh -c 'dpkg-source -x files/*.dsc tree'; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    rm -rf -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.files; \
    mv -T -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part/files \
        /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.files; \
    rm -rf -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955; \
    mv -T -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part/tree \
        /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955; \
    rm -rf -- /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955.part

# pytorch/tree: make the working copy
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    rm -rf /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.part \
        /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch; \
    mkdir -p /opt/torchyard/pytorch-2.6.0-trimmed/trees; \
    cp -a --reflink=auto /opt/torchyard/pytorch-2.6.0-trimmed/sources/pytorch-2.6.0-1b704c81d955 \
        /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.part; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.part; \
    sh -c 'rm -rf third_party/googletest && cp -r /usr/src/googletest third_party/'; \
    sed -i 's|^set(CMAKE_INSTALL_RPATH "")|set(CMAKE_INSTALL_RPATH "${_rpath_portable_origin}")|' \
        cmake/Dependencies.cmake; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.part/torch/csrc/jit/serialization; \
    flatc --cpp --gen-mutable --scoped-enums mobile_bytecode.fbs; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    mv /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.part \
        /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch

# Compiles at once; one for each core without a number.
ARG JOBS=4

# pytorch/configure: configure
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export BUILD_TEST=0; \
    export USE_CCACHE=0; \
    export USE_NCCL=0; \
    export USE_CUDA=0; \
    export USE_ROCM=0; \
    export USE_DISTRIBUTED=0; \
    export USE_MPI=0; \
    export USE_GLOO=0; \
    export USE_TENSORPIPE=0; \
    export USE_MKLDNN=0; \
    export USE_KINETO=0; \
    export USE_XNNPACK=0; \
    export USE_FBGEMM=0; \
    export USE_NNPACK=0; \
    export USE_PYTORCH_QNNPACK=0; \
    export USE_VULKAN=0; \
    export USE_ITT=0; \
    export USE_LLVM=0; \
    export BUILD_LAZY_TS_BACKEND=1; \
    export BUILD_FUNCTORCH=0; \
    export USE_PRECOMPILED_HEADERS=1; \
    export CMAKE_POLICY_VERSION_MINIMUM=3.5; \
    export USE_SYSTEM_LIBS=1; \
    export BLAS=Generic; \
    export ONNX_NAMESPACE=onnx; \
    export USE_GFLAGS=0; \
    export USE_GLOG=0; \
    export PYTORCH_BUILD_VERSION=2.6.0; \
    export PYTORCH_BUILD_NUMBER=1; \
    export PYTORCH_VERSION=2.6.0; \
    export SOVERSION=2.6; \
    export PATCH=0; \
    export GENERIC_BLAS_LIBRARIES=blas; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch/build; \
    export TORCHYARD_METER_OPTIONS='ReduceAllOpsKernel.cpp*	-O2'"$nl"\
''; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    rm -f /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch/build/CMakeCache.txt; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch; \
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python setup.py build --cmake-only

# pytorch/build: compile and pack the wheel
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    export BUILD_TEST=0; \
    export USE_CCACHE=0; \
    export USE_NCCL=0; \
    export USE_CUDA=0; \
    export USE_ROCM=0; \
    export USE_DISTRIBUTED=0; \
    export USE_MPI=0; \
    export USE_GLOO=0; \
    export USE_TENSORPIPE=0; \
    export USE_MKLDNN=0; \
    export USE_KINETO=0; \
    export USE_XNNPACK=0; \
    export USE_FBGEMM=0; \
    export USE_NNPACK=0; \
    export USE_PYTORCH_QNNPACK=0; \
    export USE_VULKAN=0; \
    export USE_ITT=0; \
    export USE_LLVM=0; \
    export BUILD_LAZY_TS_BACKEND=1; \
    export BUILD_FUNCTORCH=0; \
    export USE_PRECOMPILED_HEADERS=1; \
    export CMAKE_POLICY_VERSION_MINIMUM=3.5; \
    export USE_SYSTEM_LIBS=1; \
    export BLAS=Generic; \
    export ONNX_NAMESPACE=onnx; \
    export USE_GFLAGS=0; \
    export USE_GLOG=0; \
    export PYTORCH_BUILD_VERSION=2.6.0; \
    export PYTORCH_BUILD_NUMBER=1; \
    export PYTORCH_VERSION=2.6.0; \
    export SOVERSION=2.6; \
    export PATCH=0; \
    export GENERIC_BLAS_LIBRARIES=blas; \
    export SKBUILD_BUILD_DIR=/opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch/build; \
    export TORCHYARD_METER_OPTIONS='ReduceAllOpsKernel.cpp*	-O2'"$nl"\
''; \
    export MAX_JOBS="${JOBS:-$(nproc)}" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    rm -rf /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.dist; \
    mkdir -p /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.dist; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch; \
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python setup.py bdist_wheel \
        --dist-dir /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.dist

# pytorch/install: install the wheel and keep a copy
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    mkdir -p /opt/torchyard/pytorch-2.6.0-trimmed/wheels; \
    sh -c '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit'"$nl"\
'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done'"$nl"\
'cp "$2"/*.whl "$3"/' sh /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python \
        /opt/torchyard/pytorch-2.6.0-trimmed/trees/pytorch.dist \
        /opt/torchyard/pytorch-2.6.0-trimmed/wheels

# pytorch/verify: check the result
RUN set -eu; \
    nl=$(printf '\nx'); nl=${nl%x}; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    rm -rf -- /opt/torchyard/pytorch-2.6.0-trimmed/check; \
    mkdir -p -- /opt/torchyard/pytorch-2.6.0-trimmed/check; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed/check; \
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python -I -c 'import torch'; \
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(64, 64, requires_grad=True)'"$nl"\
'(a @ a).sum().backward()'"$nl"\
'expected = a.detach().sum(0).unsqueeze(1) + a.detach().sum(1).unsqueeze(0)'"$nl"\
'torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-4)'; \
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python -I -c 'import torch'"$nl"\
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
    /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python -I -c 'import torch'"$nl"\
'a = torch.randn(20, 20, dtype=torch.float64)'"$nl"\
'torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(20, dtype=torch.float64))'

# Every Python package, for the record.
RUN set -eu; \
    cd /opt/torchyard/pytorch-2.6.0-trimmed; \
    sh -c '"$1" -m pip freeze --all >"$2.part" && mv -T -- "$2.part" "$2"' freeze \
        /opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python \
        /opt/torchyard/pytorch-2.6.0-trimmed/freeze.txt

ENV PATH="/opt/torchyard/pytorch-2.6.0-trimmed/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/torchyard/pytorch-2.6.0-trimmed/env"
ENV PYTHONNOUSERSITE="1"

CMD ["/opt/torchyard/pytorch-2.6.0-trimmed/env/bin/python"]
