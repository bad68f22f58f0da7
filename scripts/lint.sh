#!/usr/bin/env bash
# Checks what the compiler does not see: spelling, protos, licenses, workflows, scripts, the book.
#
#   scripts/lint.sh                fetches the tools that are missing (scripts/tool.sh)
#   scripts/lint.sh --installed    runs those that are there, and says SKIPPED for the others
#   scripts/lint.sh buf typos      runs only these
#
# The protos are compared with those of the commit BASE (default: where this branch left origin/main).
# Advisories need a network: `scripts/tool.sh cargo-deny check advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped() { echo "SKIPPED $*" | tee -a "${SKIPPED_LIST:-/dev/null}"; }
run() { scripts/tool.sh "$@"; }

typos() { run typos; }
buf() {
  run buf lint
  local base=${BASE:-}
  base=${base:-$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse --verify -q HEAD^)} || true
  if [ -z "$base" ]; then
    skipped "buf breaking: there is no commit to compare with; set BASE"
  else
    run buf breaking --against ".git#ref=$(git rev-parse "$base"),subdir=proto"
  fi
}
cargo-deny() {
  run cargo-deny --locked check bans licenses sources
}
actionlint() { run actionlint; }
zizmor() { run zizmor --offline --quiet .github action.yml; }
shellcheck() { git ls-files '*.sh' .ci/run | xargs scripts/tool.sh shellcheck; }
mdbook() { run mdbook build docs --dest-dir "$PWD/target/book"; }

installed_only=
if [ "${1:-}" = --installed ]; then
  installed_only=yes
  shift
fi
[ $# -gt 0 ] || set -- typos buf cargo-deny actionlint zizmor shellcheck mdbook
failed=()
for check in "$@"; do
  if [ -n "$installed_only" ] && ! scripts/tool.sh --has "$check"; then
    skipped "$check: not installed (scripts/lint.sh $check fetches it)"
    continue
  fi
  echo "== $check"
  ("$check") || failed+=("$check")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
