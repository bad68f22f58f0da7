#!/usr/bin/env bash
# The image of the service.
#
#   scripts/image.sh                          builds it as rlaas:check, starts it, asks it, stops it
#   scripts/image.sh push DESTINATION ARCHIVE...
#                                             pushes the OCI archives of scripts/release.sh, one for each
#                                             processor, as one image, and prints its digest. DESTINATION is of
#                                             buildah, such as docker://ghcr.io/OWNER/NAME:TAG
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

push() { # DESTINATION ARCHIVE...
  local list archive digest
  list=rlaas-$$
  digest=$(mktemp)
  buildah manifest create "$list" >&2
  for archive in "${@:2}"; do buildah manifest add "$list" "oci-archive:$archive" >&2; done
  buildah manifest push --all --rm --digestfile "$digest" "$list" "$1" >&2
  # buildah 1.28 exits with 0 where it could not push.
  [ -s "$digest" ] || { echo "not pushed: $1" >&2; return 1; }
  cat "$digest"
  rm "$digest"
}

case ${1:-check} in
  check) check ;;
  push) push "${2:?DESTINATION}" "${3:?ARCHIVE}" "${@:4}" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 64 ;;
esac
