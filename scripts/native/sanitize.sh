#!/usr/bin/env bash
# The tests of libskipdec under g++'s sanitizers: all of them for addresses, undefined behaviour and
# leaks, then those with threads for races: scripts/native/sanitize.sh [PYTEST ARGUMENTS].
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
command -v g++ cmake >/dev/null || { echo "skipped: no g++ or cmake here" && exit; }
export CXX=g++ UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=2

SKIPDEC_NATIVE_PRESET=asan pytest --quiet -p no:cacheprovider tests/runtime/native \
    --ignore tests/runtime/native/test_installed.py "$@" 
# ONNX Runtime is not compiled with it: its own threads' hand-overs can't be seen
export TSAN_OPTIONS="suppressions=$PWD/scripts/native/threads.supp"
SKIPDEC_NATIVE_PRESET=tsan GTEST_FILTER='*Engine*:*Service*:*Pool*:*Thread*' \
    pytest --quiet -p no:cacheprovider tests/runtime/native/test_native.py "$@"
