#!/usr/bin/env bash
# usage: environment.sh DIR: create a virtual environment in which the real tritonserver 2.51 runs
# without a GPU, from the wheel nvidia-pytriton; its Python backend crashes with numpy 2. It
# contains this checkout of skipdec and compiles its kernels unless the checkout has them. An
# up-to-date environment is kept.
set -euo pipefail
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
environment="$(realpath -m "${1:?usage: environment.sh DIR}")"
constraints="$repository/scripts/constraints.txt"

stamp="$({ echo "$repository"; cat "${BASH_SOURCE[0]}" "$constraints"; } | sha256sum)"
if [[ "$(cat "$environment/stamp" 2>/dev/null)" != "$stamp" ]]; then
    "${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv --clear "$environment"
    # The client requires older versions of these.
    "$environment/bin/python" -m pip install --quiet \
        --constraint <(grep -vE '^(numpy|protobuf|ml_dtypes)==' "$constraints") \
        nvidia-pytriton==0.7.0 'tritonclient[grpc,http]==2.73.0' numpy==1.26.4 \
        onnxruntime pydantic tokenizers typer rich jinja2 setuptools
    ask() { "$environment/bin/python" -c "import sys, sysconfig; print($1)"; }
    packages="$(ask 'sysconfig.get_paths()["purelib"]')"
    from="$packages/pytriton/tritonserver"
    # The backend starts the stub beside it.
    mkdir -p "$environment/tritonserver/python"
    cp "$from/bin/tritonserver" "$environment/tritonserver/"
    cp "$from"/backends/python/{libtriton_python.so,triton_python_backend_utils.py} \
        "$from/python_backend_stubs/$(ask '"%d.%d" % sys.version_info[:2]')/triton_python_backend_stub" \
        "$environment/tritonserver/python/"
    chmod +x "$environment"/tritonserver/{tritonserver,python/triton_python_backend_stub}
    # The stub is linked with libpython, which is in this interpreter's LIBDIR.
    echo "$packages/nvidia_pytriton.libs:$(ask 'sysconfig.get_config_var("LIBDIR")')" \
        >"$environment/tritonserver/libraries"
    echo "$repository/src" >"$packages/skipdec.pth"
    echo "$stamp" >"$environment/stamp"
fi
# Bundles for skipdec's kernels need them; without a compiler this only warns.
if ! compgen -G "$repository/engines/kernels/_native*.so" >/dev/null; then
    cd "$repository"
    SKIPDEC_LIBSKIPDEC=0 "$environment/bin/python" setup.py --quiet build_ext --inplace
fi
