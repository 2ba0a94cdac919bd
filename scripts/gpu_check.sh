#!/usr/bin/env bash
# Run everything that needs a GPU: install carried wheels, run the tests marked gpu, measure every
# backend that loads beside a compiled Hugging Face model, and write one page.
#
#   scripts/gpu_check.sh --wheels DIR --out DIR [--seconds 1500] [--work DIR] [--bundle DIR]
#   scripts/gpu_check.sh --rehearse --out DIR      without a GPU: the same steps, a small model
#
# --wheels  holds *.whl, or part.000 … of scripts/environments/pack_wheels.sh; they are installed without an
#           index into --site (default: WORK/site), which precedes all installed packages.
# --work    keeps the site directory, bundles and figures, so that the same command continues.
# PYTHON    names the interpreter (default: python3; for --rehearse the one of .venv, which
#           setup_environment.sh makes). Exit codes: 0 no target missed, 1 some missed.
set -euo pipefail

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
wheels="" out="" work="" site="" seconds=1500 measure=() rehearse=false
while (($#)); do
    case "$1" in
        --wheels) wheels="$2" && shift 2 ;;
        --out) out="$2" && shift 2 ;;
        --work) work="$2" && shift 2 ;;
        --site) site="$2" && shift 2 ;;
        --seconds) seconds="$2" && shift 2 ;;
        --bundle) measure+=(--bundle "$(realpath "$2")") && shift 2 ;;
        --rehearse) rehearse=true measure+=(--rehearse) && shift ;;
        *) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2 && exit 2 ;;
    esac
done
[[ -n "$out" ]] || { echo "error: --out is missing; name the directory of the page" >&2 && exit 2; }
mkdir -p "$out" "${work:=$out/work}"
out="$(realpath "$out")" work="$(realpath "$work")" site="$(realpath -m "${site:-$work/site}")"
started=$SECONDS
if [[ $rehearse == true && -z "${PYTHON:-}" ]]; then
    source "$repository/scripts/setup_environment.sh"
    python="$environment/bin/python"
fi

install=("$python" -m pip install --quiet --no-deps --no-compile --no-cache-dir --upgrade)
if [[ -n "$wheels" ]]; then
    if compgen -G "$wheels/part.*" >/dev/null; then
        mkdir -p "$work/wheels"
        cat "$wheels"/part.* | tar -C "$work/wheels" -xf -
        wheels="$work/wheels"
    fi
    "${install[@]}" --no-index --target "$site" "$wheels"/*.whl
fi
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
if ! (cd / && "$python" -c 'import skipdec') 2>/dev/null; then
    "${install[@]}" --no-index --no-build-isolation --target "$site" "$repository"
    rm -rf "$repository/build"
fi

# ONNX Runtime looks for CUDA's packages beside itself, but the machine's are elsewhere.
libraries="$("$python" -P -c 'import pathlib, sys; print(*(
    folder for entry in sys.path for folder in pathlib.Path(entry).glob("nvidia/*/lib")), sep=":")')"
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

cd "$repository"
"$python" -c 'from skipdec.cli import main; main()' doctor | tee "$out/doctor.txt"
echo "tests marked gpu" >&2
timeout "$((seconds / 3))" "$python" -P -m pytest -m gpu --no-header \
    --continue-on-collection-errors 2>&1 | tee "$out/pytest.txt" | tail -n 25 || true
summary="$(grep -E '(passed|failed|skipped|deselected|error)' "$out/pytest.txt" | tail -n 1 | tr -d =)" ||
    summary="none finished"

"$python" scripts/bench.py gpu --out "$out" --work "$work" --tests "$summary" \
    --seconds $((seconds - (SECONDS - started))) "${measure[@]}"
