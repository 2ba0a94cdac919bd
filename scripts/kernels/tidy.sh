#!/usr/bin/env bash
# Check the C++ sources under FOLDER, which has compile_flags.txt, with clang-tidy:
# scripts/kernels/tidy.sh FOLDER [OPTIONS]. The sources of a folder are checked together, as they
# are compiled, so that headers are read once; programs and kernels of an instruction set alone.
set -euo pipefail
folder="$1"
shift
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

while IFS= read -r -d '' source; do
    unit="$(dirname "$source")"
    if [[ "$source" =~ /(amx|avx.*|neon|portable)\.cpp$ ]] || grep -q '^int main(' "$source"; then
        unit="$source"
    fi
    echo "#include \"$PWD/$source\"" >>"$work/${unit//\//-}.cpp"
done < <(find "$folder" -name '*.cpp' -print0 | sort -z)

printf '%s\0' "$work"/*.cpp |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$folder" \
        --config-file=engines/kernels/native/.clang-tidy "$@" 2>"$work/counts" || {
    tail -n 20 "$work/counts" >&2
    exit 1
}
