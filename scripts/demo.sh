#!/usr/bin/env bash
# From nothing to skipped decoding: export a model, generate with and without skipping, measure.
# No GPU and no model hub: this opt-125m has random weights, so what it generates makes no sense.
# Its size, its engines and the times below are real.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
bundle="$work/opt-125m-int8"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. Export: one int8 engine per decoder layer, verified against PyTorch"
skipdec export opt-125m --load-format dummy --quantize int8 -o "$bundle"

say "2. Generate: token ids (random weights make no text) and the layers that each token ran"
for schedule in full 2x 4x; do
    printf '{"id": "%s", "prompt": "The restaurant by the river"}\n' "$schedule" |
        skipdec generate "$bundle" --input - --schedule "$schedule" \
            --temperature 0 --max-tokens 16 --ignore-eos
done

say "3. Which layers each token runs at 2x"
skipdec schedule show 2x:horizon=16 --layers 12

say "4. The gain, measured in one run"
skipdec bench "$bundle" -b 1,8 --prompt-len 32 --gen-len 64 \
    --schedule full --schedule 2x --schedule 4x
