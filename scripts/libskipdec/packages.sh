#!/usr/bin/env bash
# For CI: what the C++ tests are built with, from Debian, where it is missing and this is root.
# Without it those tests are skipped, with the reason.
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
    echo "warning: not here: ${missing[*]}; C++ tests that need them are skipped" >&2
fi
