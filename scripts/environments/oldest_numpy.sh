#!/usr/bin/env bash
# Test what runs in a service with the oldest numpy that pyproject.toml allows, because the Python
# backend of Triton 2.51 crashes with numpy 2. scripts/environments/oldest_numpy.sh [PYTEST
# ARGUMENTS].
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

pip install --quiet --no-deps --target "$place" numpy==1.26.4
export PYTHONPATH="$place"
python -c "import numpy; assert numpy.__version__ == '1.26.4', numpy.__version__"
OMP_NUM_THREADS=1 pytest --quiet -p no:cacheprovider --numprocesses "${TEST_WORKERS:-2}" \
    --dist loadfile --no-loadscope-reorder tests/engines/{backends,test_manifest.py} \
    tests/runtime/{requests,kv,schedule,scheduling,tokens,test_generator.py} "$@"
