#!/usr/bin/env bash
# Run the kernel tests with g++'s address and undefined behaviour sanitizers, in a copy of the
# package: scripts/kernels/sanitize.sh [PYTEST ARGUMENTS]. The thread sanitizer runs in native.sh:
# it can't see the atomic operations of ONNX Runtime, which is not compiled with it, and would
# report each hand-over between its threads as a race.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
command -v g++ >/dev/null || { echo "skipped: no g++ here" && exit; }
copy="$(mktemp -d)" sources="$(mktemp -d)"
trap 'rm -rf "$copy" "$sources"' EXIT

copy_sources "$sources"
SKIPDEC_LIBSKIPDEC=0 CXX=g++ CXXFLAGS="-O1 -g1 -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all" \
    pip install --quiet --no-deps --no-build-isolation --target "$copy" "$sources"

# Python is not compiled with the sanitizer, so preload it, and libstdc++ for its exceptions.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 # Python leaks memory at exit
export PYTHONPATH="$copy" PYTHONMALLOC=malloc
python -c "
from skipdec.engines.kernels.library import find_library
library = find_library()
assert library and str(library.path).startswith('$copy'), library"
OMP_NUM_THREADS=2 pytest --quiet -p no:cacheprovider tests/engines/kernels "$@"
