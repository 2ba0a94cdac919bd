#!/usr/bin/env bash
# usage: environment.sh DIR: a virtual environment in which the real tritonserver 2.51 runs without a
# GPU, from the wheel nvidia-pytriton; its Python backend dies of numpy 2. In it skipdec is this
# checkout, with its kernels if they were compiled. An environment that is up to date is left alone.
set -euo pipefail
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
environment="${1:?usage: environment.sh DIR}"
constraints="$repository/scripts/constraints.txt"

stamp="$(cat "${BASH_SOURCE[0]}" "$constraints" | sha256sum)"
if [[ "$(cat "$environment/stamp" 2>/dev/null)" != "$stamp" ]]; then
    "${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv --clear "$environment"
    # The client wants older ones of these.
    "$environment/bin/python" -m pip install --quiet \
        --constraint <(grep -vE '^(numpy|protobuf|ml_dtypes)==' "$constraints") \
        nvidia-pytriton==0.7.0 'tritonclient[grpc,http]==2.73.0' numpy==1.26.4 \
        onnxruntime pydantic tokenizers typer rich
    ask() { "$environment/bin/python" -c "import sys, sysconfig; print($1)"; }
    packages="$(ask 'sysconfig.get_paths()["purelib"]')"
    from="$packages/pytriton/tritonserver"
    # The backend starts the stub that lies beside it.
    mkdir -p "$environment/tritonserver/python"
    cp "$from/bin/tritonserver" "$environment/tritonserver/"
    cp "$from"/backends/python/{libtriton_python.so,triton_python_backend_utils.py} \
        "$from/python_backend_stubs/$(ask '"%d.%d" % sys.version_info[:2]')/triton_python_backend_stub" \
        "$environment/tritonserver/python/"
    chmod +x "$environment"/tritonserver/{tritonserver,python/triton_python_backend_stub}
    # The stub is linked with libpython, which lies where this interpreter has it.
    echo "$packages/nvidia_pytriton.libs:$(ask 'sysconfig.get_config_var("LIBDIR")')" \
        >"$environment/tritonserver/libraries"
    # Its parts: a link to the checkout, which this may lie in, would be a circle to who follows links.
    mkdir -p "$packages/skipdec"
    ln -sfn "$repository"/{src/skipdec/{__init__.py,py.typed,cli.py},engines,runtime,exporter,calib} \
        "$packages/skipdec/"
    echo "$stamp" >"$environment/stamp"
fi
