#!/usr/bin/env bash
# From a tuned model to skipped decoding: export it, generate with and without skipping, measure,
# draw. Needs no GPU and no model hub: this project tuned examples/restaurants to skip; the opt-125m
# of the last step has random weights of the real size, for its times. Charts go to OUT
# (demo-output). The first run creates .venv, which scripts/test.sh completes.
set -euo pipefail
setup=demo
source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"

out="${OUT:-$repository/demo-output}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
restaurants="$work/restaurants" opt="$work/opt-125m-int8"
schedules=(--schedule full --schedule 2x --schedule 4x)
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

echo "The demo takes one minute on two free cores." >&2

# Runs beside the first steps, which are not timed; both load PyTorch, which takes some seconds.
skipdec export opt-125m --load-format dummy --quantize int8 -q --no-verify -o "$opt" >"$work/export" 2>&1 &
opt_export=$!

say "1. Export: one engine per decoder layer, verified against PyTorch"
skipdec export examples/restaurants -q -o "$restaurants"
skipdec inspect "$restaurants" --json |
    python -c 'import json, sys; print("kernels in use:", json.load(sys.stdin)["kernels"])'

say "2. Write: each text at full depth, at 2x and at 4x"
prompts=(
    "name[Blue Spice], eatType[coffee shop], area[city centre]"
    "name[Cotto], eatType[pub], food[English], customer rating[5 out of 5], near[The Portland Arms]"
    "name[The Mill], eatType[restaurant], food[Chinese], priceRange[moderate], familyFriendly[no]"
)
for schedule in full 2x 4x; do
    skipdec generate "$restaurants" "${prompts[@]/#/--prompt=}" --schedule "$schedule" \
        --temperature 0 --max-tokens 60 -q | grep -v -e '^#' -e '^$' >"$work/$schedule"
done
for place in "${!prompts[@]}"; do
    printf '\n%s\n' "${prompts[place]}"
    for schedule in full 2x 4x; do
        printf '  %-5s%s\n' "$schedule" "$(sed -n "$((place + 1))p" "$work/$schedule")"
    done
done
wait "$opt_export" || { cat "$work/export" >&2; exit 1; }

say "3. What skipping costs in quality and gains in time (a few prompts: the intervals are wide)"
skipdec evaluate "$restaurants" --data examples/restaurants.jsonl "${schedules[@]}" \
    --lowercase -o "$out/evaluation" --force
skipdec schedule plot 2x --layers 12 --horizon 24 -o "$out/schedule-2x.png"
skipdec schedule plot 4x --layers 12 --horizon 24 -o "$out/schedule-4x.png"
echo "charts: $out/evaluation/pareto.png $out/schedule-2x.png $out/schedule-4x.png"

say "4. The gain where layers have their real size: opt-125m, int8, random weights, one run"
cat "$work/export"
skipdec bench "$opt" -b 1,8 --prompt-len 32 --gen-len 64 "${schedules[@]}"
