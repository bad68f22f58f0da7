#!/usr/bin/env bash
# The image of the service.
#
#   scripts/image.sh                          builds it as rlaas:check, starts it, asks it, stops it
#   scripts/image.sh publish REPOSITORY TAG   builds it for this machine's processor with an SBOM and
#                                             provenance, and pushes it as REPOSITORY:TAG (docker buildx);
#                                             writes the digests of its base images to target/image
#   scripts/image.sh merge REPOSITORY TAG SUFFIX...
#                                             makes REPOSITORY:TAG of REPOSITORY:TAG-SUFFIX for each suffix,
#                                             and prints name=REPOSITORY and its digest=sha256:...
#
# ENGINE is docker (the default) or podman.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${ENGINE:-docker}

check() {
  $engine build --tag rlaas:check .
  local container
  container=$($engine run --detach --read-only --cap-drop ALL rlaas:check)
  trap '$engine logs "$container"; $engine rm --force "$container" >/dev/null' RETURN
  local tries=0
  until $engine exec "$container" rlaas health; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || return 1
    sleep 0.5
  done
  $engine exec "$container" rlaas check alice
  [ "$($engine exec "$container" rlaas check alice --json | grep -c '"allowed": *true')" = 1 ]
}

publish() {
  # The default builder of docker keeps no attestations.
  docker buildx create --use --driver docker-container >/dev/null
  # The tags of base images move: the build uses the digests that they have now, and these are kept.
  local base contexts=()
  mkdir -p target/image
  : >"target/image/rlaas-image-$2.bases.txt"
  # shellcheck disable=SC2013 # no name has a space
  for base in $(sed -n 's/^FROM \([^ ]*\).*/\1/p' Dockerfile); do
    local pinned
    pinned=$base@$(digest "$base")
    echo "$pinned" >>"target/image/rlaas-image-$2.bases.txt"
    contexts+=(--build-context "$base=docker-image://$pinned")
  done
  docker buildx build --push --sbom=true --provenance=mode=max "${contexts[@]}" --tag "$1:$2" .
}

digest() {
  docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1"
}

merge() {
  local repository=$1 tag=$2
  shift 2
  docker buildx imagetools create --tag "$repository:$tag" "${@/#/$repository:$tag-}" >&2
  printf 'name=%s\ndigest=%s\n' "$repository" "$(digest "$repository:$tag")"
}

case ${1:-check} in
  check) check ;;
  publish) publish "${2:?REPOSITORY}" "${3:?TAG}" ;;
  merge) merge "${@:2}" ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 64 ;;
esac
