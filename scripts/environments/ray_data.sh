#!/usr/bin/env bash
# Run the tests of Ray, whose wheel is too large for the environment (240 MB), from a separate
# folder: scripts/environments/ray_data.sh [PYTEST ARGUMENTS].
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

pip install --quiet --no-deps --target "$place" ray==2.60.0 msgpack==1.2.4 || {
    echo "skipped: Ray's packages are not available here" >&2
    exit 0
}
export PYTHONPATH="$place"
OMP_NUM_THREADS=1 pytest --quiet -p no:cacheprovider tests/end_to_end/test_ray.py "$@"
