#!/usr/bin/env bash
# Run the main contracts (tests/core.txt) on a copy of the package installed without a C++ compiler:
# scripts/kernels/fallback.sh [PYTEST ARGUMENTS].
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
copy="$(mktemp -d)" sources="$(mktemp -d)"
trap 'rm -rf "$copy" "$sources"' EXIT

copy_sources "$sources"
CXX=/bin/false pip install --quiet --no-deps --no-build-isolation --target "$copy" "$sources"
export PYTHONPATH="$copy"
python -c "from skipdec.engines.kernels.library import find_library; assert find_library() is None"
skipdec doctor --no-bandwidth --json |
    grep -q '"was not compiled with this installation.*run: pip install'
CXX=/bin/false pytest --quiet -p no:cacheprovider -rs tests/runtime/libskipdec/test_native.py |
    grep "SKIPPED.*can't be built here"
OMP_NUM_THREADS=1 pytest --quiet -p no:cacheprovider --numprocesses "${TEST_WORKERS:-2}" \
    --dist loadfile --no-loadscope-reorder @tests/core.txt "$@"
