#!/usr/bin/env bash
# The docs site: scripts/pages/site.sh serves it while you write docs/ (http://localhost:8000), and
# scripts/pages/site.sh build builds site/ and fails on a broken link or anchor, as CI does.
set -euo pipefail
[[ $# -le 1 && "${1:-serve}" =~ ^(serve|build)$ ]] || {
    echo "usage: scripts/pages/site.sh [serve|build]" >&2
    exit 2
}
source "$(dirname "${BASH_SOURCE[0]}")/../setup_environment.sh"
PYTHONPATH=scripts python -m pages.reference # docs/reference: commands, Python, manifest, errors
case "${1:-serve}" in
build)
    python -m zensical build --clean --strict
    PYTHONPATH=scripts python -m pages.search site/search.json
    ;;
serve) python -m zensical serve ;;
esac
