#!/usr/bin/env bash
# Build two Linux wheels for this processor; pip takes the first that fits: scripts/kernels/wheel.sh
# [OUT], default dist. One contains kernels and libskipdec and needs a C library at least as new as
# the one here; one has only the kernels and runs from manylinux_2_28 on. Fails if a file is missing
# or needs a newer library; auditwheel lists the symbols that do.
set -euo pipefail
out="$(realpath -m "${1:-dist}")"
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
copy_sources "$work/sources"

# wheel NAME PLATFORM FILE…: build a wheel that must contain these compiled files
wheel() {
    rm -rf "$work/sources"/build/{lib,bdist}* # setuptools would pack the other wheel's files
    python -m build --wheel --no-isolation --outdir "$work/$1" "$work/sources" >"$work/log" || {
        cat "$work/log"
        exit 1
    }
    local built listed file
    built="$(compgen -G "$work/$1/*-py3-none-linux_*.whl")" || {
        grep BuildNative "$work/log" >&2
        echo "error: the wheel contains nothing compiled" >&2
        exit 1
    }
    listed="$(python -m zipfile --list "$built")"
    for file in "${@:3}"; do
        grep --only-matching "skipdec/$file[^ ]*" <<<"$listed" || {
            grep BuildNative "$work/log" >&2
            echo "error: the wheel lacks $file" >&2
            exit 1
        }
    done
    auditwheel show "$built"
    auditwheel repair --strip --plat "$2" --wheel-dir "$out" "$built"
}

SKIPDEC_LIBSKIPDEC=0 wheel kernels "manylinux_2_28_$(uname -m)" engines/kernels/_native
wheel all auto engines/kernels/_native runtime/native/lib/libskipdec.so runtime/native/bin/skipdec-run
