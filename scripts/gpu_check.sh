#!/usr/bin/env bash
# Run everything that needs a GPU, part by part, most valuable first: tests of correctness, then
# opt-1.3b beside a compiled Hugging Face model. Each call runs what fits into its time and writes
# the result of each part and a page to DIR, from which the next call continues.
#
#   scripts/gpu_check.sh --out DIR [--packed DIR] [--seconds 540] [--work DIR]
#   scripts/gpu_check.sh --rehearse --out DIR      without a GPU: the same parts, a small model
#
# --packed  holds the two files of scripts/environments/pack_gpu_host.sh, for a host without a package
#           index; they are unpacked into WORK/site, which precedes all installed packages; once only.
# --seconds limit of this call, installation included.
# --work    keeps the site directory and bundles (default: /tmp/skipdec-gpu-check).
# Further options are those of scripts/bench.py gpu: --model and --part NAME.
# PYTHON    names the interpreter (default: python3; for --rehearse the one of .venv, which
#           setup_environment.sh makes). Exit codes: 0 all passed and no target was missed, 1 not.
set -euo pipefail

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
packed="" out="" work="${TMPDIR:-/tmp}/skipdec-gpu-check" seconds=540 options=() rehearse=false
while (($#)); do
    case "$1" in
        --packed) packed="$2" && shift 2 ;;
        --out) out="$2" && shift 2 ;;
        --work) work="$2" && shift 2 ;;
        --seconds) seconds="$2" && shift 2 ;;
        --part | --model) options+=("$1=$2") && shift 2 ;;
        --rehearse) rehearse=true options+=(--rehearse) && shift ;;
        *) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2 && exit 2 ;;
    esac
done
[[ -n "$out" ]] || { echo "error: --out is missing; name the directory of the page" >&2 && exit 2; }
mkdir -p "$out" "$work"
out="$(realpath "$out")" work="$(realpath "$work")"
site="$work/site"
if [[ $rehearse == true && -z "${PYTHON:-}" ]]; then
    source "$repository/scripts/setup_environment.sh"
    python="$environment/bin/python"
fi

provider="$site/onnxruntime/capi/libonnxruntime_providers_cuda.so"
if [[ -n "$packed" && ! -e "$provider" ]]; then
    for file in provider.so.xz packages.tar.xz; do
        [[ -e "$packed/$file" ]] ||
            { echo "error: $file is missing in $packed; bring it, too" >&2 && exit 2; }
    done
    mkdir -p "$site"
    tar -C "$site" -xJf "$packed/packages.tar.xz"
    xz -dc "$packed/provider.so.xz" >"$provider.partial" && mv "$provider.partial" "$provider"
fi
# The package runs from the tree, without compiled kernels, which are for CPUs. Only the metadata
# from which it reads its version is installed.
export PYTHONPATH="$site:$repository/src${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -P -c 'import importlib.metadata; importlib.metadata.version("skipdec")' 2>/dev/null; then
    version="$(sed -n 's/^version = "\(.*\)"$/\1/p' "$repository/pyproject.toml" | head -n 1)"
    mkdir -p "$site/skipdec-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: skipdec\nVersion: %s\n' "$version" \
        >"$site/skipdec-$version.dist-info/METADATA"
fi

# ONNX Runtime looks for CUDA's packages beside itself, but this machine has them elsewhere.
libraries="$("$python" -P -c 'import pathlib, sys; print(*(
    folder for entry in sys.path for folder in pathlib.Path(entry).glob("nvidia/*/lib")), sep=":")')"
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

cd "$repository"
export PYTHON="$python"
"$python" scripts/bench.py gpu --out "$out" --work "$work" --seconds $((seconds - SECONDS)) \
    "${options[@]}"
