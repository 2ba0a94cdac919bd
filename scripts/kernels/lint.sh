#!/usr/bin/env bash
# Check the kernels' C++: clang-tidy, clang++'s warnings as errors (g++'s are when the package is
# built), and our declaration of ONNX Runtime's C ABI against its own header. Missing tools are reported. HEADERS
# names a folder with onnxruntime_c_api.h; otherwise apt fetches it from Debian 13.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
native=engines/kernels/native

scripts/kernels/tidy.sh "$native"
echo "kernels: clang-tidy finds no problems"

copy_sources "$work/sources"
compiler="$(compgen -c clang++ | sort -V | tail -n 1 || true)"
if [[ -n "$compiler" ]]; then # the kernels alone, unoptimised, for warnings and target features
    (cd "$work/sources" && SKIPDEC_LIBSKIPDEC=0 CXX="$compiler" CXXFLAGS="-Werror -O0" \
        python setup.py --quiet build_ext --build-lib "$work/$compiler")
    compgen -G "$work/$compiler/skipdec/engines/kernels/_native*" >/dev/null
    echo "kernels: $compiler has no warnings"
else
    echo "skipped: no clang++ here"
fi

fetch_headers() {
    local apt=(apt-get -qq -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$work/sources"
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=")
    mkdir -p "$work/sources" "$work/lists/partial" "$work/cache/archives/partial"
    # use the first entry of this machine's own list, for the next release
    sed '/^$/q; s/^Suites:.*/Suites: trixie/' /etc/apt/sources.list.d/debian.sources \
        >"$work/sources/trixie.sources"
    (cd "$work" && "${apt[@]}" update && "${apt[@]}" download libonnxruntime-dev &&
        dpkg-deb -x libonnxruntime-dev_*.deb .) || return 1
    HEADERS="$work/usr/include/onnxruntime"
}
if [[ -n "${HEADERS:-}" ]] || fetch_headers 2>"$work/apt"; then
    for abi in scripts/kernels/abi.cpp scripts/libskipdec/abi.cpp; do
        g++ -std=c++17 -fsyntax-only -I"$native" -Iruntime/native/src -isystem "$HEADERS" "$abi"
    done
    echo "kernels and libskipdec: the ABI matches onnxruntime_c_api.h"
else
    echo "skipped: no onnxruntime_c_api.h ($(tail -n 1 "$work/apt")); HEADERS may name its folder"
fi
