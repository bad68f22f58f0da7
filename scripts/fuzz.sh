#!/usr/bin/env bash
# Runs fuzz targets, one after the other:
#
#   scripts/fuzz.sh SECONDS              each target for that time
#   scripts/fuzz.sh SECONDS TARGET...    some of them
#
# Needs a nightly toolchain (NIGHTLY names it; default: nightly). An input that fails is kept in
# fuzz/artifacts/TARGET; `cargo +nightly fuzz run TARGET FILE` runs it again. Once it is fixed, it moves to
# fuzz/seeds/TARGET: every run starts with the inputs there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: scripts/fuzz.sh SECONDS TARGET...}
shift
export RUSTUP_TOOLCHAIN=${NIGHTLY:-nightly}
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(scripts/tool.sh cargo-fuzz list)
failed=()
for target in "${targets[@]}"; do
  echo "== fuzz $target for ${seconds}s"
  # New inputs go to the first folder, which git ignores.
  mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
  scripts/tool.sh cargo-fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    "-max_total_time=$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    || failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
