# Sourced by test.sh, demo.sh and bench scripts: makes .venv from the pinned versions, or reuses it,
# and puts it first on PATH. PYTHON names the interpreter (default: python3.11, else python3).

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
environment="$repository/.venv"
constraints="$repository/scripts/constraints.txt"
cd "$repository"

python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: $("$python" --version) at $python; needed: 3.11 or newer; set PYTHON" >&2
    exit 3
}

stamp="$({ echo "$repository"; "$python" -VV; cat "$constraints" pyproject.toml; } | sha256sum)"
if [[ "$(cat "$environment/stamp" 2>/dev/null)" != "$stamp" ]]; then
    echo "making $environment (a few minutes, once)" >&2
    "$python" -m venv --clear "$environment"
    install=("$environment/bin/python" -m pip install --quiet --constraint "$constraints")
    # torch alone and first, so that pip takes a CPU build of it wherever one is configured; with it
    # what building skipdec needs
    "${install[@]}" setuptools nlohmann_json "$(grep '^torch==' "$constraints")"
    # Type checkers can't follow this import hook: CONTRIBUTING.md says what to do for one's own scripts.
    "${install[@]}" --no-build-isolation --editable '.[cpu,export,calib,plot,serve,dev,docs]'
    # NVIDIA's builder, under its own licence, works without a GPU; there are wheels for Linux on
    # x86-64 alone. Without it, the tests that build real plans are skipped with the reason.
    "${install[@]}" --no-build-isolation --editable '.[tensorrt-rtx]' ||
        echo "warning: no tensorrt-rtx here; tests that build real plans will be skipped" >&2
    echo "$stamp" >"$environment/stamp"
fi
export PATH="$environment/bin:$PATH"

# The kernels and libskipdec, again after an edit; without a C++ compiler this only warns, each time.
native="$({ find engines/kernels/native runtime/native setup.py -type f \
    -not -path 'runtime/native/bin/*' -not -path 'runtime/native/lib/*' -exec sha256sum {} + | sort
    echo "${CXX:-} ${CXXFLAGS:-}"; } | sha256sum)"
if [[ "$(cat "$environment/native" 2>/dev/null)" != "$native" ||
    ! -f runtime/native/lib/libskipdec.so.1 ]] ||
    ! compgen -G 'engines/kernels/_native*.so' >/dev/null; then
    python setup.py --quiet build_ext --inplace
    echo "$native" >"$environment/native"
fi
