# Sourced by test.sh, demo.sh and bench scripts: creates or reuses .venv with the pinned versions
# and puts it first on PATH. PYTHON names the interpreter (default: python3.11, else python3). With
# setup=demo, only demo.sh's requirements are installed and only the kernels compiled; a script that
# needs more completes the environment later.

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
environment="$repository/.venv"
constraints="$repository/scripts/constraints.txt"
cd "$repository"

python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: $("$python" --version) at $python; needed: 3.11 or newer; set PYTHON" >&2
    exit 3
}

demo_extras=cpu,export,calib,plot
all_extras="$demo_extras,serve,dev,docs"
stamp="$({ echo "$repository"; "$python" -VV; cat "$constraints" pyproject.toml; } | sha256sum)"
[[ "$(cat "$environment/stamp" 2>/dev/null)" == "$stamp" ]] || rm -f "$environment"/{stamp,complete}

# demo.sh keeps what another script or environment has installed.
if [[ "${setup:-all}" == demo && ! -e "$environment/complete" &&
    ! -f runtime/native/lib/libskipdec.so.1 ]]; then
    compiles=kernels
    export SKIPDEC_LIBSKIPDEC=0
else
    compiles="kernels, libskipdec"
fi

# Compile what changed since the last time; without a C++ compiler, this warns each time.
compile_native() {
    local native
    native="$({ find engines/kernels/native runtime/native setup.py -type f \
        -not -path 'runtime/native/bin/*' -not -path 'runtime/native/lib/*' -exec sha256sum {} + | sort
        echo "${CXX:-} ${CXXFLAGS:-} ${SKIPDEC_LIBSKIPDEC:-1}"; } | sha256sum)"
    if [[ "$(cat "$environment/native" 2>/dev/null)" != "$native" ]] ||
        [[ "${SKIPDEC_LIBSKIPDEC:-1}" == 1 && ! -f runtime/native/lib/libskipdec.so.1 ]] ||
        ! compgen -G 'engines/kernels/_native*.so' >/dev/null; then
        "$environment/bin/python" setup.py --quiet build_ext --inplace
        echo "$native" >"$environment/native"
    fi
}

# copy_sources FOLDER: copy what a wheel is built from, so that scripts that compile with other
# flags can run beside each other and beside tests. Includes compiled objects, whose folders depend
# on flags.
copy_sources() {
    mkdir -p "$1/build/native"
    tar --exclude={__pycache__,'*.egg-info','*.so',runtime/native/bin,runtime/native/lib} -cf - \
        pyproject.toml setup.py README.md LICENSE src engines runtime exporter calib |
        tar -C "$1" -xf -
    [[ ! -d build/kernels ]] || cp -a build/kernels "$1/build/"
    [[ ! -d build/native/generated ]] || cp -a build/native/generated "$1/build/native/"
}

# requirements EXTRAS: print what the package and these extras need, one per line, without skipdec's
# own extras.
requirements() {
    "$environment/bin/python" -c '
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = [project["optional-dependencies"][extra] for extra in sys.argv[1].split(",")]
for requirement in sum(extras, project["dependencies"]):
    if not requirement.startswith("skipdec["):
        print(requirement)
' "$1"
}

setup_start=$SECONDS
report() {
    local seconds=$((SECONDS - setup_start))
    printf '[%d:%02d] %s\n' $((seconds / 60)) $((seconds % 60)) "$*" >&2
}

# Leave compilation to the first import, because pip would take 20 s for all of PyTorch's modules.
# If the shell forbids bytecode files, each process would compile anew, for half of its imports'
# time.
unset PYTHONDONTWRITEBYTECODE
pip_install() {
    "$environment/bin/python" -m pip install --quiet --no-compile --constraint "$constraints" "$@"
}

# install_editable EXTRAS: install skipdec from this checkout with the extras' requirements.
install_editable() { pip_install --no-build-isolation --editable ".[$1]"; }

if [[ ! -e "$environment/stamp" ]]; then
    report "making $environment, once: a minute or two, plus the download (PyTorch, transformers, \
ONNX Runtime), while C++ is compiled ($compiles)"
    "$python" -m venv --clear "$environment"
    pip_install setuptools nlohmann_json
    compile_native >"$environment/compiling" 2>&1 &
    # torch first and alone, so that pip takes a CPU build wherever one is configured
    pip_install "$(grep '^torch==' "$constraints")"
    requirements "$demo_extras" >"$environment/requirements"
    pip_install --requirement "$environment/requirements"
    report "libraries are installed"
    wait $!
    cat "$environment/compiling" >&2
    report "C++ is compiled"
    install_editable "$demo_extras"
    echo "$stamp" >"$environment/stamp"
fi
if [[ "${setup:-all}" == all && ! -e "$environment/complete" ]]; then
    report "adding what tests and docs need to $environment, once: a minute or two, plus the download"
    install_editable "$all_extras"
    # NVIDIA's builder, under its own licence, works without a GPU; it has wheels only for Linux on
    # x86-64. Without it, tests that build real plans are skipped with the reason.
    install_editable tensorrt-rtx ||
        echo "warning: no tensorrt-rtx here; tests that build real plans will be skipped" >&2
    touch "$environment/complete"
fi
export PATH="$environment/bin:$PATH"
compile_native
