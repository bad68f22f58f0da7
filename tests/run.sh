#!/usr/bin/env bash
# Everything that must hold, from a fresh clone: installs what the tests need where it is missing
# (Debian: redis-server, prometheus, openssl, curl and a C compiler), then format, lints, tests and
# documentation.
#
#   tests/run.sh             the gate: within 15 minutes on two cores
#   SOAK=1 tests/run.sh      also the long runs
#   NO_SKIP=1 tests/run.sh   fails where tools of other languages are missing (SKIPPED otherwise)
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v prometheus >/dev/null || missing+=(prometheus)
command -v openssl >/dev/null || missing+=(openssl)
command -v curl >/dev/null || missing+=(curl)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  # The tests start servers of their own: none that is installed is to run as a service, neither
  # now (policy-rc.d) nor from the next boot on.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
    $sudo chmod +x $policy
    trap '$sudo rm -f $policy' EXIT
  fi
  enabled() { find /etc/systemd/system -path '*.wants/*' -printf '%f\n' 2>/dev/null | sort -u; }
  enabled_before=$(enabled)
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  for unit in $(comm -13 <(echo "$enabled_before") <(enabled)); do
    ! command -v systemctl >/dev/null || $sudo systemctl disable --quiet "$unit"
  done
fi

step() {
  echo "== $*"
  "$@"
}

step cargo fmt --check
step cargo clippy --workspace --all-targets --locked -- --deny warnings
# As embedders have it: without features that others in the workspace ask for.
step cargo clippy --package rlaas-limiter --locked -- --deny warnings
step cargo test --workspace --locked
[ -z "${SOAK:-}" ] || DIFFERENTIAL_CASES=10000 step cargo test --locked --test it differential::
RUSTDOCFLAGS="--deny warnings" step cargo doc --workspace --locked --no-deps --quiet
