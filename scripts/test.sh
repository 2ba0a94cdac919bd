#!/usr/bin/env bash
# Check format (also of C++), lint, import directions and types, and run the tests. Arguments go to
# pytest: scripts/test.sh -k kv
# A leading --quick runs only each folder's main contract (tests/core.txt).
# scripts/test.sh --cov --cov-report=term-missing:skip-covered measures coverage, a quarter slower.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"

tests=()
if [[ "${1:-}" == --quick ]]; then
    tests=(@tests/core.txt)
    shift
fi

ruff format --check .
ruff check .
find engines runtime examples scripts tests \( -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.hpp' \) -print0 |
    xargs -0 clang-format --style=file:engines/kernels/native/.clang-format --dry-run -Werror
lint-imports --no-cache --no-logo

mypy=(mypy --cache-dir "$environment/mypy_cache")
MYPYPATH=src "${mypy[@]}" -p skipdec
MYPYPATH=src "${mypy[@]}" tests/typed_calls.py
MYPYPATH="src:scripts:scripts/attack" "${mypy[@]}" --explicit-package-bases scripts

# One thread per worker process: two workers with two threads each would compete for two cores.
# A worker runs a file's tests together, to share fixtures, and begins with the slow files.
OMP_NUM_THREADS=1 pytest -m "not pages" --numprocesses "${TEST_WORKERS:-2}" --dist loadfile \
    --no-loadscope-reorder "${tests[@]}" "$@"
