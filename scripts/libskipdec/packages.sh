#!/usr/bin/env bash
# For CI: install missing build dependencies of the C++ tests from Debian, if run as root. Without
# them those tests are skipped with the reason.
set -euo pipefail
missing=()
for package in cmake ccache pkg-config libgtest-dev libcpp-httplib-dev nlohmann-json3-dev; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
        missing+=("$package")
done
((${#missing[@]})) || exit 0
if [[ $EUID == 0 ]] && command -v apt-get >/dev/null &&
    apt-get -qq update && apt-get -qq install --yes --no-install-recommends "${missing[@]}"; then
    echo "installed: ${missing[*]}"
else
    echo "warning: missing: ${missing[*]}; C++ tests that need them are skipped" >&2
fi
