#!/usr/bin/env bash
# Checks from Linux that the workspace compiles for macOS, with its tests. Nothing is linked or run.
#
#   scripts/macos.sh [TARGET]
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-x86_64-apple-darwin}
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/macos}
scripts/tool.sh cargo-zigbuild check --workspace --target "$target" --tests --locked
