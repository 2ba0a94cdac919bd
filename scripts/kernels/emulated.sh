#!/usr/bin/env bash
# Run the kernel tests for AMX and AVX-VNNI on any processor with AVX-512 VNNI, in a copy of the
# package whose tiles are emulated in plain C++, and whose AVX-VNNI instructions are encoded as those
# of AVX-512. scripts/kernels/emulated.sh [PYTEST ARGUMENTS]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
grep -qw avx512_vnni /proc/cpuinfo || { echo "skipped: no AVX-512 VNNI here" && exit; }
copy="$(mktemp -d)" sources="$(mktemp -d)"
trap 'rm -rf "$copy" "$sources"' EXIT

copy_sources "$sources"
SKIPDEC_LIBSKIPDEC=0 CXXFLAGS="-DSKIPDEC_EMULATED" \
    pip install --quiet --no-deps --no-build-isolation --target "$copy" "$sources"
export PYTHONPATH="$copy"
SKIPDEC_INSTRUCTION_SET=amx python -c "
from skipdec.engines.kernels.library import require_library
assert require_library('the test').instruction_set == 'amx'"
OMP_NUM_THREADS=1 pytest --quiet -p no:cacheprovider -k "amx or avxvnni" "${@:-tests/engines/kernels}"
