#!/usr/bin/env bash
# Show layer skipping with a tuned model: export it, generate with and without skipping, and with
# drafts, measure, draw. Needs no GPU and no model hub: this project tuned examples/restaurants to
# skip, and the opt-125m of the last step, which is only timed, has random weights of the real size.
# Charts go to OUT (demo-output). The first run creates .venv, which scripts/test.sh completes.
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

echo "The demo takes one to two minutes on two free cores." >&2

# This runs beside the first steps, which are not timed, because loading PyTorch takes some seconds.
skipdec export opt-125m --load-format dummy --quantize int8 -q --no-verify -o "$opt" >"$work/export" 2>&1 &
opt_export=$!

say "1. Export: one engine per decoder layer, verified against PyTorch"
skipdec export examples/restaurants --quantize int8 -q -o "$restaurants"
inspected() { skipdec inspect "$restaurants" --json | python -c "import json, sys; print(json.load(sys.stdin)$1)"; }
echo "kernels in use: $(inspected '["kernels"]')"

say "2. Write: each text at full depth, at 2x, at 4x, and at full depth with drafts, which change no text"
prompts=(
    "name[Blue Spice], eatType[coffee shop], area[city centre]"
    "name[Cotto], eatType[pub], food[English], customer rating[5 out of 5], near[The Portland Arms]"
    "name[The Mill], eatType[restaurant], food[Chinese], priceRange[moderate], familyFriendly[no]"
)
write() {
    skipdec generate "$restaurants" "${prompts[@]/#/--prompt=}" --temperature 0 --max-tokens 60 -q "${@:2}" |
        grep -v -e '^#' -e '^$' >"$work/$1"
}
for schedule in full 2x 4x; do
    write "$schedule" --schedule "$schedule"
done
columns=(full 2x 4x)
if [[ $(inspected '["drafts"]["exact"]') == True ]]; then
    write draft --schedule full --draft ends:3
    cmp "$work/full" "$work/draft"
    columns+=(draft)
else
    echo "no drafts: $(inspected '["drafts"]["problem"]')"
fi
for place in "${!prompts[@]}"; do
    printf '\n%s\n' "${prompts[place]}"
    for column in "${columns[@]}"; do
        printf '  %-6s%s\n' "$column" "$(sed -n "$((place + 1))p" "$work/$column")"
    done
done
wait "$opt_export" || { cat "$work/export" >&2; exit 1; }

say "3. What skipping costs in quality and gains in time (a few prompts: the intervals are wide)"
skipdec evaluate "$restaurants" --data examples/restaurants.jsonl "${schedules[@]}" --batch-size 1 \
    --lowercase -o "$out/evaluation" --force
skipdec schedule plot 2x --layers 12 --horizon 24 -o "$out/schedule-2x.png" --force
skipdec schedule plot 4x --layers 12 --horizon 24 -o "$out/schedule-4x.png" --force
echo "charts: $out/evaluation/pareto.png $out/schedule-2x.png $out/schedule-4x.png"
echo "Drafts are not timed: on a model this small they gain only after dozens of texts (docs/benchmarks.md#drafts)."

say "4. The gain where layers have their real size: opt-125m, int8, random weights, one run"
cat "$work/export"
skipdec bench "$opt" -b 1,8 --prompt-len 32 --gen-len 64 "${schedules[@]}"
