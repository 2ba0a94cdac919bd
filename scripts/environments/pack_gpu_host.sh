#!/usr/bin/env bash
# Pack what a GPU host without a package index lacks into two files, for hosts that accept only
# small ones; scripts/gpu_check.sh --packed DIR unpacks both there.
#
#   scripts/environments/pack_gpu_host.sh DIR [COMPUTE_CAPABILITY]
#
# DIR/provider.so.xz    ONNX Runtime's CUDA provider, trimmed to one compute capability (default 9.0)
# DIR/packages.tar.xz   the rest of ONNX Runtime, skipdec's own dependencies, and those of tuning
# The host is x86-64 Linux and has PyTorch for CUDA 13, cuda-bindings, accelerate, tokenizers, rich
# and pytest with xdist.
# PYVER     the host's Python (default: 3.12)
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
(($#)) || { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2 && exit 2; }
mkdir -p "$1"
directory="$(realpath "$1")" capability="${2:-9.0}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

download=(python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp
    --python-version "${PYVER:-3.12}" --dest "$work/wheels" --platform manylinux2014_x86_64)
for version in 39 35 34 31 28 27 24 17; do
    download+=(--platform "manylinux_2_${version}_x86_64")
done
constraint() {
    grep -i "^$1==" "$scripts/constraints.txt"
}

for name in onnxruntime pydantic pydantic_core annotated-types typing-inspection typing_extensions \
    typer annotated-doc shellingham click markdown-it-py mdurl onnx-ir fastapi starlette uvicorn \
    opentelemetry-api h11 prometheus_client transformers nltk sacrebleu; do
    requirement="$(constraint "$name")"
    "${download[@]}" "${requirement/#onnxruntime==/onnxruntime-gpu==}"
done
python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/wheels" "$(constraint rouge_score)"
mkdir "$work/site"
for wheel in "$work"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/site"
done

capi="$work/site/onnxruntime/capi"
python3 "$scripts/environments/trim_cuda.py" "$capi/libonnxruntime_providers_cuda.so" \
    "$capability" "$work/provider.so"
rm -r "$capi"/libonnxruntime_providers_{cuda,tensorrt}.so "$capi"/libonnxruntime.so.* \
    "$work"/site/onnxruntime/{transformers,tools,quantization}
xz -T0 -6 -c "$work/provider.so" >"$directory/provider.so.xz"
tar -C "$work/site" -cf - . | xz -T0 -6 >"$directory/packages.tar.xz"
ls -l "$directory"
