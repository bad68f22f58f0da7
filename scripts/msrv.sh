#!/usr/bin/env bash
# Checks that each crate compiles with the `rust-version` in its Cargo.toml, with all its features.
# rustup installs the toolchains that are missing. What a dependency declares does not count: serde-saphyr
# declares 1.89 and compiles with 1.88; without our Cargo.lock cargo picks a release that fits.
#
#   scripts/msrv.sh              all crates
#   scripts/msrv.sh CRATE...     some of them
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/msrv}

versions=$(cargo metadata --no-deps --locked --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    print(package["name"], package["rust_version"])')
crates=${*:-$(cut -d " " -f 1 <<<"$versions")}
for crate in $crates; do
  version=$(awk -v crate="$crate" '$1 == crate { print $2 }' <<<"$versions")
  [ -n "$version" ] || { echo "there is no crate $crate" >&2; exit 1; }
  rustup run "$version" rustc --version >/dev/null 2>&1 \
    || rustup toolchain install "$version" --profile minimal --no-self-update
  echo "== $crate with Rust $version"
  cargo "+$version" check --package "$crate" --all-features --locked --ignore-rust-version --quiet
done
