#!/usr/bin/env bash
# THIRD_PARTY_NOTICES.txt: the licenses of all crates of the program. The image and the release archives
# contain it.
#
#   scripts/notices.sh              fails if the file is not what notices.py prints
#   scripts/notices.sh --update     writes it
set -euo pipefail
cd "$(dirname "$0")/.."
file=THIRD_PARTY_NOTICES.txt
made=$(mktemp)
trap 'rm -f "$made"' EXIT
python3 scripts/notices.py >"$made"
if [ "${1:-}" = --update ]; then
  cp "$made" $file
elif ! diff -q "$made" $file >/dev/null; then
  diff "$made" $file | head -20
  echo "$file is stale: scripts/notices.sh --update writes it" >&2
  exit 1
fi
