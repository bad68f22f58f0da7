#!/usr/bin/env bash
# Makes what a release offers for this machine, in target/package:
#
#   rlaas-VERSION-TARGET.tar.gz           the program, licenses, notices, an example of each configuration
#   rlaas-VERSION-TARGET.cdx.json         the SBOM: every crate of the program, as CycloneDX
#   rlaas-VERSION-TARGET.sha256           the checksums of both
#
# PROFILE (default: dist) is the profile of cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-dist}
target=$(rustc -vV | sed -n 's/^host: //p')
cargo build --locked --profile "$profile" --package rlaas --bin rlaas
folder=${CARGO_TARGET_DIR:-target}/$profile
[ "$profile" != dev ] || folder=${folder%dev}debug
version=$("$folder/rlaas" --version | cut -d " " -f 2)
name=rlaas-$version-$target
out=target/package
rm -rf "$out"
mkdir -p "$out/$name"

cp "$folder/rlaas" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE THIRD_PARTY_NOTICES.txt "$out/$name"
cp -R config "$out/$name/config"
tar -C "$out" -czf "$out/$name.tar.gz" "$name"
rm -r "${out:?}/$name"

scripts/tool.sh cargo-cyclonedx --manifest-path Cargo.toml --format json --target "$target" \
  --override-filename sbom --quiet
mv sbom.json "$out/$name.cdx.json"
rm -f crates/*/sbom.json

sum() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
(cd "$out" && sum "$name.tar.gz" "$name.cdx.json" >"$name.sha256")
ls -l "$out"
