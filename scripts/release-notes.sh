#!/usr/bin/env bash
# Prints the section of CHANGELOG.md for a tag, such as v0.1.0. Fails unless the tag is the version in
# Cargo.toml and the section has a date.
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:?usage: scripts/release-notes.sh TAG}
version=$(cargo metadata --no-deps --locked --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
print(next(package["version"] for package in packages if package["name"] == "rlaas"))')
if [ "$tag" != "v$version" ]; then
  echo "the tag is $tag, and Cargo.toml says $version" >&2
  exit 1
fi
notes=$(awk -v version="$version" '
  /^## / { inside = index($2, version) && $0 ~ /[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]/; next }
  inside' CHANGELOG.md)
if [ -z "$notes" ]; then
  echo "CHANGELOG.md has no dated section for $version" >&2
  exit 1
fi
echo "$notes"
