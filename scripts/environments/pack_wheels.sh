#!/usr/bin/env bash
# Download wheels for a GPU host without a package index, split for hosts that accept only small
# files; scripts/gpu_check.sh --wheels DIR joins them there, once all pieces and SHA256SUMS are in
# one directory.
#
#   scripts/environments/pack_wheels.sh DIR [PIECE_MIB] [NAME==VERSION ...]
#
# Default: 48 MiB per piece; ONNX Runtime for CUDA, TensorRT-RTX, and skipdec's own dependencies, in
# the versions of constraints.txt. x86-64 Linux.
# PYVER     the host's Python (default: 3.12)
# HAS       packages that the host has already and that are left out, e.g. HAS="sympy rich"
# Not included: NVIDIA's full TensorRT (tensorrt_cu13, 2 GB) and PyTorch's own dependencies.
set -euo pipefail

constraints="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/constraints.txt"
(($#)) || { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2 && exit 2; }
directory="$1" piece="${2:-48}"
shift $(($# < 2 ? $# : 2))

read -r -d '' -a has <<<"${HAS:-}" || true
pinned() { grep -i "^$1==" "$constraints"; }
if (($# == 0)); then
    runtime="$(pinned onnxruntime)"
    set -- "${runtime/onnxruntime/onnxruntime-gpu}" $(for name in tensorrt_rtx_cu13 \
        tensorrt_rtx_cu13_bindings tensorrt_rtx_cu13_libs cuda-bindings cuda-pathfinder \
        pydantic pydantic_core annotated-types typing-inspection typing_extensions tokenizers \
        typer annotated-doc shellingham click rich Pygments markdown-it-py mdurl onnx-ir \
        fastapi starlette uvicorn opentelemetry-api h11 prometheus_client \
        hypothesis sortedcontainers sympy mpmath setuptools; do
        [[ " ${has[*]} " == *" $name "* ]] || pinned "$name"
    done)
fi

wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
download=(python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp
    --python-version "${PYVER:-3.12}" --dest "$wheels" --platform manylinux2014_x86_64)
for version in 39 35 34 31 28 27 24 17; do
    download+=(--platform "manylinux_2_${version}_x86_64")
done
for requirement in "$@"; do
    # A source distribution such as tensorrt_rtx_cu13 is a few lines of Python around wheels.
    "${download[@]}" "$requirement" 2>/dev/null ||
        python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$requirement"
done

mkdir -p "$directory"
rm -f "$directory"/part.*
tar -C "$wheels" -cf - . | split --bytes "${piece}M" --numeric-suffixes --suffix-length 3 \
    - "$directory/part."
(cd "$directory" && sha256sum part.* >SHA256SUMS)
ls -l "$directory"
