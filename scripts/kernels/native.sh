#!/usr/bin/env bash
# Run the kernels without Python (tests/engines/kernels/native): on this machine, under the thread
# sanitizer, on each of its instruction sets, and compiled for aarch64 under qemu, with equal bits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# build NAME COMPILER FLAGS...: build the tests with the kernels as $work/NAME
build() {
    local program="$work/$1" compile=("${@:2}" -std=c++17 -O2 -ffp-contract=off -Wall -Wextra -Werror)
    local source
    while read -r source; do
        printf '%q ' "${compile[@]}" -Iengines/kernels/native -c "$source" \
            -o "$program.${source//\//.}.o"
        echo
    done < <(find engines/kernels/native tests/engines/kernels/native -name '*.cpp') >"$program.commands"
    xargs -P "$(nproc)" -d '\n' -n 1 sh -c <"$program.commands"
    "${compile[@]}" "$program".*.o -pthread -o "$program"
}

command -v g++ >/dev/null || { echo "skipped: no g++ here" && exit; }
build here g++ -g1 -fsanitize=thread
"$work/here" | tee "$work/digests"

qemu="$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)"
if [[ -n "$qemu" ]] && command -v aarch64-linux-gnu-g++ >/dev/null; then
    build aarch64 aarch64-linux-gnu-g++ -static
    "$qemu" "$work/aarch64" | diff "$work/digests" -
    echo "kernels: the same bits on aarch64"
else
    echo "skipped: no aarch64-linux-gnu-g++ (g++-aarch64-linux-gnu) or qemu-aarch64 (qemu-user-static) here"
fi
