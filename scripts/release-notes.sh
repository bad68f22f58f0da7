#!/usr/bin/env bash
# Prints the section of CHANGELOG.md for a tag, such as v0.1.0; for v0.1.0-rc.1 it is that of 0.1.0. Fails unless the
# tag is the version in Cargo.toml, nothing is under Unreleased and the section has a date, which only a release needs.
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
section() { # NAME
  awk -v name="$1" '/^## / { inside = $2 == name; next } inside' CHANGELOG.md
}
if [ -n "$(section Unreleased)" ]; then
  echo "CHANGELOG.md has lines under Unreleased: move them to ${version%%-*}" >&2
  exit 1
fi
if [[ $version != *-* ]] && ! grep -qE "^## ${version//./\\.} - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md; then
  echo "CHANGELOG.md has no dated section for $version" >&2
  exit 1
fi
notes=$(section "${version%%-*}")
if [ -z "$notes" ]; then
  echo "CHANGELOG.md has nothing about ${version%%-*}" >&2
  exit 1
fi
echo "$notes"
