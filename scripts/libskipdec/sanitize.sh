#!/usr/bin/env bash
# Run libskipdec's tests under g++'s sanitizers: all for addresses, undefined behaviour and leaks,
# then those with threads for races: scripts/libskipdec/sanitize.sh [PYTEST ARGUMENTS]. PRESET=asan
# runs only the former, PRESET=tsan only the latter.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
command -v g++ cmake >/dev/null || { echo "skipped: no g++ or cmake here" && exit; }
export CXX=g++ OMP_NUM_THREADS=1
presets="${PRESET:-asan tsan}"
build() { python tests/support/native/programs.py skipdec-tests >/dev/null; } # tests have timeouts
test=(pytest --quiet -p no:cacheprovider -m "not pages")

# Everything that reads bundles, texts and requests. Precisions and programs run without sanitizers
# in scripts/test.sh. The quarantine is small because a test compares the memory of processes.
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=quarantine_size_mb=4
folder=tests/runtime/libskipdec
if [[ $presets == *asan* ]]; then
    export SKIPDEC_NATIVE_PRESET=asan
    build
    "${test[@]}" --numprocesses "${TEST_WORKERS:-2}" --dist loadfile \
        "$folder"/test_native.py "$folder"/interface/test_lifetimes.py \
        "$folder"/parity/test_{generating,sampling,sessions,tokenizer_files}.py \
        -k "not every_precision and not every_structure" "$@"
fi

# The engine's thread and its callers, with engines in plain C++, because ONNX Runtime is not
# compiled with the sanitizer, which can't see hand-overs between its threads.
if [[ $presets == *tsan* ]]; then
    export SKIPDEC_NATIVE_PRESET=tsan
    build
    "${test[@]}" "$folder"/test_native.py "$@"
fi
