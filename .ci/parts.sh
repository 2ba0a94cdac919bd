#!/usr/bin/env bash
# Run the commands on stdin, one per line, as many at a time as there are processors. Prints the
# output of each when it ends, and that of failed ones again at the end. Fails if any failed.
set -euo pipefail
export PARTS="$(mktemp -d)"
trap 'rm -rf "$PARTS"' EXIT

run_part() {
    local log status=0 started=$SECONDS
    log="$(mktemp "$PARTS/XXXXXXXX.log")"
    bash -c "$1" &>"$log" </dev/null || status=$?
    (
        flock 9
        echo "== $1 (exit code $status after $((SECONDS - started)) s)"
        cat "$log"
    ) 9>"$PARTS/lock"
    ((status == 0)) || { echo "== $1" && cat "$log"; } >"$log.failed"
    ((status == 0))
}
export -f run_part

at_once="$(env -u OMP_NUM_THREADS nproc)" # nproc obeys that variable
OMP_NUM_THREADS=1 CMAKE_BUILD_PARALLEL_LEVEL=1 \
    xargs -d '\n' -P "$at_once" -I {} bash -c 'run_part "$1"' part {} && exit
echo "== failed:" >&2
cat "$PARTS"/*.failed >&2
exit 1
