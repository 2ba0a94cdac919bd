#!/usr/bin/env bash
# Build a small model's TensorRT plans for the GPU of this machine and measure them, where TensorRT
# is installed: tensorrt.sh WORK PROMPT_LENGTH NUM_TOKENS. Prints the JSON of skipdec bench.
set -euo pipefail
work="$1" prompt="$2" tokens="$3"
python="${PYTHON:-python3}"
"$python" -P -c "import tensorrt" 2>/dev/null || { echo "TensorRT is not installed" && exit; }
skipdec() { "$python" -m skipdec "$@"; }
skipdec export opt-125m -o "$work/canonical" --dtype=float16 --load-format=dummy --keep-canonical \
    --no-verify --kernels=onnxruntime --force --quiet --max-seq-len=$((prompt + tokens)) >&2
echo "tensorrt: {max_prompt_len: $prompt}" > "$work/plans.yaml"
skipdec build "$work/canonical" --config "$work/plans.yaml" --target=tensorrt -o "$work/plans" \
    --max-batch-size=8 --force >&2
skipdec bench "$work/plans" --batch-sizes=1 --schedule=5x --json
