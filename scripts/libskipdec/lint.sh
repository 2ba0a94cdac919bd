#!/usr/bin/env bash
# Check the C++ of libskipdec: clang-tidy with clang's warnings
# (g++'s are errors when the tests are built), and each header alone in each language it supports.
# Missing tools are reported. ANALYZE=1 adds clang's path-sensitive analyzer, which takes five times
# as long.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
runtime=runtime/native
json="$(python -c 'import nlohmann_json, pathlib
print(pathlib.Path(nlohmann_json.__file__).parent / "include")')"

# clang-tidy does not see that a member optional is checked where it is set, and the headers of
# g++ 12 call functions that C++17 deprecates.
checks='clang-diagnostic-*,-clang-diagnostic-deprecated-declarations,-bugprone-unchecked-optional-access'
[[ "${ANALYZE:-0}" == 1 ]] || checks+=,-clang-analyzer-*

scripts/kernels/tidy.sh "$runtime" --exclude-header-filter='skipdec/skipdec\.h$' \
    --checks="$checks" --extra-arg="-isystem$json"
echo "libskipdec: clang-tidy finds no problems, clang has no warnings"

clang="$(compgen -c clang++ | sort -V | tail -n 1 || true)" # often missing
for compiler in gcc g++ ${clang:+"${clang/++/}" "$clang"}; do
    command -v "$compiler" >/dev/null || { echo "skipped: no $compiler here" && continue; }
    case "$compiler" in
    *++*) languages=(c++:c++17 c++:c++20) headers=("$runtime"/include/skipdec/*.h*) ;;
    *) languages=(c:c99 c:c17) headers=("$runtime"/include/skipdec/*.h) ;;
    esac
    for language in "${languages[@]}"; do
        for header in "${headers[@]}"; do
            "$compiler" -x "${language%:*}" -std="${language#*:}" -Wall -Wextra -Wpedantic -Werror \
                -fsyntax-only -I"$runtime/include" - <<<"#include <skipdec/$(basename "$header")>"
        done
    done
done
echo "libskipdec: its headers compile alone in C99, C17, C++17 and C++20"
