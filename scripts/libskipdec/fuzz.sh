#!/usr/bin/env bash
# Fuzz libskipdec's parsers with COUNT inputs each, mutated from files of tiny bundles, under the
# address and undefined behaviour sanitizers: scripts/libskipdec/fuzz.sh COUNT [SEED] [PARSER…].
# PRESET=tests omits the sanitizers for ten times the speed. The same SEED (default 1) gives the
# same inputs; an input that crashes is left here as PARSER.input.
set -euo pipefail
count="${1:?usage: scripts/libskipdec/fuzz.sh COUNT [SEED] [PARSER…]}" seed="${2:-1}"
shift $(($# < 2 ? $# : 2))
from="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
corpus="$(mktemp -d)"
trap 'rm -rf "$corpus"' EXIT
export SKIPDEC_NATIVE_PRESET="${PRESET:-asan}"

program="$(python tests/support/native/programs.py skipdec-fuzz)"
[[ -n "$program" ]] || exit 0
python scripts/libskipdec/corpus.py "$corpus" 2>"$corpus.log" || { cat "$corpus.log" >&2 && exit 1; }
(($#)) || set -- $(basename --suffix .cpp -a tests/runtime/libskipdec/fuzz/fuzz_*.cpp)
cd "$from"
printf '%s\n' "$@" |
    UBSAN_OPTIONS=print_stacktrace=1 xargs -P "$(nproc)" -n 1 "$program" "$corpus" "$count" "$seed"
