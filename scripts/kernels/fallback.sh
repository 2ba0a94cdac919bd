#!/usr/bin/env bash
# Run the tests that export, open and run bundles on a copy of the package installed without a C++
# compiler: scripts/kernels/fallback.sh [PYTEST ARGUMENTS].
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
    --dist loadfile --no-loadscope-reorder tests/package/test_imports.py tests/engines/backends/test_ort.py \
    tests/engines/kernels/test_library.py tests/runtime/{commands/test_generate.py,scheduling/test_running_batch.py,test_generator.py} \
    tests/end_to_end/test_skipping.py "$@"
