#!/usr/bin/env bash
# A wheel for any Linux of this processor: scripts/kernels/wheel.sh [OUT], default dist. Fails without
# the kernels inside, and where they need a C library newer than manylinux_2_28's; then auditwheel's
# list says which symbols do.
set -euo pipefail
out="$(realpath -m "${1:-dist}")"
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

rm -rf build/lib* build/bdist* # setuptools would pack what the tree no longer has
python -m build --wheel --no-isolation --outdir "$work" . >"$work/log" || { cat "$work/log" && exit 1; }
wheel="$(compgen -G "$work/*-py3-none-linux_*.whl")" || {
    grep BuildKernels "$work/log" >&2
    echo "error: the wheel lacks the kernels" >&2
    exit 1
}
python -m zipfile --list "$wheel" | grep --only-matching 'skipdec/engines/kernels/_native[^ ]*'
auditwheel show "$wheel"
auditwheel repair --strip --plat "manylinux_2_28_$(uname -m)" --wheel-dir "$out" "$wheel"
