#!/usr/bin/env bash
# Checks each feature of each crate alone, all together, and none, with warnings denied.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/tool.sh cargo-hack clippy --workspace --each-feature --lib --bins --locked --quiet -- \
  --deny warnings
