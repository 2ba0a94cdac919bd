#!/usr/bin/env bash
# Run the tests that start the real tritonserver, in .venv-triton, which is created if missing (0.5
# GB); arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
export SKIPDEC_TRITON_ENVIRONMENT="${SKIPDEC_TRITON_ENVIRONMENT:-$repository/.venv-triton}"
"$repository/scripts/tritonserver/environment.sh" "$SKIPDEC_TRITON_ENVIRONMENT" || {
    echo "skipped: Triton's packages are not available here" >&2
    exit 0
}
OMP_NUM_THREADS=1 pytest -m triton tests/runtime/serving/triton "$@"
