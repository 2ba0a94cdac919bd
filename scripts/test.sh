#!/usr/bin/env bash
# Format, lint, import directions, types and tests. Arguments go to pytest: scripts/test.sh -k kv
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_environment.sh"

ruff format --check .
ruff check .
lint-imports --no-cache --no-logo

# The repository root is the package, which mypy only recognises where it is installed under its
# name. build/ goes first: setuptools would pack files from it that the tree no longer has.
installed="$environment/installed"
rm -rf build "$installed"
pip install --quiet --no-deps --no-build-isolation --target "$installed" .
MYPYPATH="$installed" mypy --cache-dir "$environment/mypy_cache" -p skipdec

# One thread pool per worker process: two workers with two threads each would fight over two cores.
OMP_NUM_THREADS=1 pytest --numprocesses "${TEST_WORKERS:-2}" --dist loadfile \
    --cov --cov-report=term-missing:skip-covered "$@"
