#!/usr/bin/env bash
# usage: server.sh ENVIRONMENT REPOSITORY [options of tritonserver]: run the server of
# environment.sh at 127.0.0.1. Stop it with SIGTERM: SIGKILL leaves the processes of its models and
# their shared memory.
set -euo pipefail
environment="$(readlink -f "${1:?usage: server.sh ENVIRONMENT REPOSITORY [options]}")"
models="${2:?usage: server.sh ENVIRONMENT REPOSITORY [options]}"
shift 2
server="$environment/tritonserver"
# The backend looks for Python on PATH and ignores PYTHONPATH.
export PATH="$environment/bin:$PATH" LD_LIBRARY_PATH="$(cat "$server/libraries")"
exec "$server/tritonserver" --model-repository="$models" --backend-directory="$server" \
    --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1 \
    --allow-gpu-metrics=false --exit-timeout-secs=5 "$@"
