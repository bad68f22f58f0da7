#!/bin/sh
# Installs a release of rlaas: fetches its archive, compares the SHA-256, copies the program and its man page.
#
#   RLAAS_RELEASES=https://… ./install.sh VERSION [FOLDER]
#
# RLAAS_RELEASES is the address below which v0.1.0/rlaas-0.1.0-TARGET.tar.gz is; it has no default, because the
# project is not published yet. FOLDER (default: ~/.local) gets bin/rlaas and share/man/man1/rlaas.1.
#
# The checksum comes from the same address: it finds damage, not a forged release. The attestation of the archive
# proves who built it.
set -eu

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

version=${1:-}
folder=${2:-$HOME/.local}
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
[ -n "$version" ] || fail "which version? RLAAS_RELEASES=https://… ./install.sh 0.1.0"
releases=${RLAAS_RELEASES:-}
case $releases in
  https://* | http://127.0.0.1:*) ;;
  "") fail "RLAAS_RELEASES is not set: the address of the releases" ;;
  *) fail "RLAAS_RELEASES must begin with https://" ;;
esac

case $(uname -s)-$(uname -m) in
  Linux-x86_64) target=x86_64-unknown-linux-musl ;;
  Linux-aarch64) target=aarch64-unknown-linux-musl ;;
  Darwin-arm64) target=aarch64-apple-darwin ;;
  *) fail "there is no archive for $(uname -s) on $(uname -m): cargo builds it from source" ;;
esac

name=rlaas-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for file in "$name.tar.gz" "$name.sha256"; do
  curl --fail --silent --show-error --location --proto-redir =https --remote-name "${releases%/}/v$version/$file" \
    || fail "there is no ${releases%/}/v$version/$file"
done
grep "  $name.tar.gz\$" "$name.sha256" >sum || fail "$name.sha256 does not name $name.tar.gz"
if command -v sha256sum >/dev/null; then
  sha256sum -c sum >/dev/null || fail "$name.tar.gz is damaged"
else
  shasum -a 256 -c sum >/dev/null || fail "$name.tar.gz is damaged"
fi
tar -xzf "$name.tar.gz"
mkdir -p "$folder/bin" "$folder/share/man/man1"
# Under another name first: a program that runs can't be written, but can be replaced.
cp "$name/rlaas" "$folder/bin/rlaas.new"
mv "$folder/bin/rlaas.new" "$folder/bin/rlaas"
cp "$name/rlaas.1" "$folder/share/man/man1/rlaas.1"
echo "$("$folder/bin/rlaas" --version | head -n 1) is in $folder/bin"
