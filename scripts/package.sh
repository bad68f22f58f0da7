#!/usr/bin/env bash
# Makes the archives of a release in target/package, for the targets of Rust that are named, else for this machine:
#
#   scripts/package.sh [TARGET...]
#
#   rlaas-VERSION-TARGET.tar.gz           the program, its man page, completions of shells, licenses, notices, an
#                                         example of each configuration and its schema, the unit of systemd
#   rlaas-VERSION-TARGET.cdx.json         the SBOM: every crate of the program, as CycloneDX; not with PROFILE=dev
#   rlaas-VERSION-TARGET.sha256           the checksums of both
#
# For Linux the program is static, with musl. zig compiles C and links, for other processors too.
# PROFILE (default: dist) is the profile of cargo. The first target is one whose programs run here.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-dist}
version=$(cargo pkgid --locked --package rlaas)
version=${version##*[#@]}
out=target/package
rm -rf "$out"
mkdir -p "$out"

build() { # TARGET
  local options=(--locked --profile "$profile" --package rlaas --bin rlaas --target "$1")
  [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ] || rustup target add "$1"
  case $1 in
    *-musl) scripts/tool.sh cargo-zigbuild zigbuild "${options[@]}" ;;
    *) cargo build "${options[@]}" ;;
  esac
}

sum() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

package() { # TARGET
  local name=rlaas-$version-$1 folder=${CARGO_TARGET_DIR:-target}/$1/$profile
  [ "$profile" != dev ] || folder=${folder%dev}debug
  build "$1"
  mkdir "$out/$name"
  cp "$folder/rlaas" docs/man/rlaas.1 README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE THIRD_PARTY_NOTICES.txt \
    "$out/$name"
  cp -R config "$out/$name/config"
  mkdir -p "$out/$name/docs/reference"
  cp docs/reference/*.schema.json "$out/$name/docs/reference"
  # The same for each target.
  if [ ! -d "$out/completions" ]; then
    mkdir "$out/completions"
    for shell in bash zsh fish; do "$folder/rlaas" completions $shell >"$out/completions/rlaas.$shell"; done
  fi
  cp -R "$out/completions" "$out/$name"
  tar -C "$out" -czf "$out/$name.tar.gz" "$name"
  rm -r "${out:?}/$name"

  if [ "$profile" = dev ]; then
    (cd "$out" && sum "$name.tar.gz" >"$name.sha256")
    return
  fi
  scripts/tool.sh cargo-cyclonedx --manifest-path Cargo.toml --format json --target "$1" \
    --override-filename sbom --quiet
  # Without the folder of this machine.
  sed "s|file://$PWD|file:///rlaas|g" sbom.json >"$out/$name.cdx.json"
  rm -f sbom.json crates/*/sbom.json
  (cd "$out" && sum "$name.tar.gz" "$name.cdx.json" >"$name.sha256")
}

if [ $# = 0 ]; then
  host=$(rustc -vV | sed -n 's/^host: //p')
  set -- "${host/%-linux-gnu/-linux-musl}"
fi
for target in "$@"; do
  package "$target"
done
rm -r "$out/completions"
ls -l "$out"
