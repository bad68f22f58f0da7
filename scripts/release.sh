#!/usr/bin/env bash
# A release on trial: makes every artefact below target/release-dry-run, and tries each one from itself in an empty
# folder. Nothing is published. For Linux on x86-64; the image needs buildah, of Debian.
#
#   scripts/release.sh           all of it; on other systems the archive for this machine alone
#   scripts/release.sh STEP...   a part: archives image chart crates wheel npm go
#
# The steps after archives use the program in its archive. A line that begins with SKIPPED names what was not tried;
# with NO_SKIP=1 that is a failure.
#
#   PROFILE=dev scripts/release.sh archives image chart
#                                the same of a debug program, for x86-64 alone: the part `release` of tests/run.sh
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$root/target/release-dry-run
export PATH="$root/target/tools/debian/bin:$PATH"
version=$(cargo pkgid --locked --package rlaas)
version=${version##*[#@]}
amd64=x86_64-unknown-linux-musl
arm64=aarch64-unknown-linux-musl
host=$(rustc -vV | sed -n 's/^host: //p')
host=${host/%-linux-gnu/-linux-musl}
targets=("$host")
[ "$host ${PROFILE:-dist}" != "$amd64 dist" ] || targets+=("$arm64")

work=$(mktemp -d)
running=() # the processes to end
end() {
  [ ${#running[@]} = 0 ] || kill "${running[@]}" 2>/dev/null || true
  wait
  running=()
}
trap 'end; rm -rf "$work"' EXIT

skipped() {
  echo "SKIPPED $*" | tee -a "${SKIPPED_LIST:-/dev/null}"
  [ -z "${NO_SKIP:-}" ] || exit 1
}
has() { command -v "$1" >/dev/null; }
free_port() { python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

eventually() { # COMMAND...
  local tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { echo "still fails after 30 s: $*"; cat "$work"/*.log; "$@"; } >&2
    sleep 0.1
  done
}

# Copies the files of the repository that are in a folder, without what builds leave there.
copy() { # FOLDER
  mkdir -p "$work/copy"
  git ls-files -z --cached --others --exclude-standard "$1" | tar --null -T - -c | tar -x -C "$work/copy"
}

# Unpacks an archive into an empty folder, and prints the path of its program.
program() { # TARGET
  local folder=$work/archive-$1
  mkdir -p "$folder"
  tar -C "$folder" -xzf "$out/archives/rlaas-$version-$1.tar.gz"
  echo "$folder/rlaas-$version-$1/rlaas"
}

# Starts a server on free ports, in $grpc and $http, and asks it by curl.
serve() { # COMMAND...
  grpc=127.0.0.1:$(free_port)
  http=127.0.0.1:$(free_port)
  "$@" serve --set "server.listen=$grpc" --set "server.http=$http" >"$work/serve.log" 2>&1 &
  running+=($!)
  eventually curl -sf "http://$http/readyz"
  curl -sf -d '{"userId":"curl"}' "http://$http/v1/check" | grep '"allowed":true'
}

# --- Archives and what is in them -----------------------------------------------------------------

make_archives() {
  if [[ $host = *-musl ]] && ! scripts/tool.sh cargo-zigbuild --version >/dev/null; then
    skipped "the release: there is no cargo-zigbuild, with zig, and PyPI has not given them"
    exit 0
  fi
  scripts/package.sh "${targets[@]}"
  cp target/package/* "$out/archives"
  install
  serve "$work/installed/bin/rlaas"
  "$work/installed/bin/rlaas" check --addr "$grpc" alice
  end
  [ "$host" = $amd64 ] || return 0
  completions
  unit_and_man_page
  [ ${#targets[@]} = 2 ] || return 0
  if has qemu-aarch64-static; then
    serve qemu-aarch64-static "$(program $arm64)"
    end
  else
    skipped "the program for arm64: there is no qemu-aarch64-static (qemu-user-static of Debian)"
  fi
}

# install.sh, from a server on this machine: a sound archive, then a damaged one.
install() {
  local port releases=$work/releases
  port=$(free_port)
  mkdir -p "$releases/damaged"
  cp -r "$out/archives" "$releases/v$version"
  cp -r "$out/archives" "$releases/damaged/v$version"
  echo >>"$releases/damaged/v$version/rlaas-$version-$host.tar.gz"
  python3 -m http.server "$port" --bind 127.0.0.1 --directory "$releases" >"$work/http.log" 2>&1 &
  running+=($!)
  eventually curl -sf "http://127.0.0.1:$port/"
  RLAAS_RELEASES=http://127.0.0.1:$port ./install.sh "$version" "$work/installed"
  if RLAAS_RELEASES=http://127.0.0.1:$port/damaged ./install.sh "$version" "$work/not-installed"; then
    echo "install.sh has installed an archive that is damaged" >&2
    return 1
  fi
  [ ! -e "$work/not-installed" ]
  end
}

# bash completes the names of commands.
completions() {
  local script
  script=$(dirname "$(program $amd64)")/completions/rlaas.bash
  bash -c '. "$1"; COMP_WORDS=(rlaas check-c); COMP_CWORD=1; _rlaas rlaas check-c rlaas; echo "${COMPREPLY[@]}"' \
    bash "$script" | grep check-config
}

unit_and_man_page() {
  local unit=$work/rlaas.service folder
  folder=$(dirname "$(program $amd64)")
  if has groff; then
    if groff -man -Tutf8 -ww -z "$folder/rlaas.1" 2>&1 | grep .; then return 1; fi
  else
    skipped "the man page: there is no groff"
  fi
  if has systemd-analyze; then
    # Of this machine, where nothing is installed.
    sed "s|/usr/local/bin/rlaas|$folder/rlaas|" "$folder/config/systemd/rlaas.service" >"$unit"
    systemd-analyze verify --man=no "$unit"
    # In tenths: a unit is rated from 0 to 10, and 10 is no protection at all.
    systemd-analyze security --offline=yes --threshold=15 --no-pager "$unit" | tail -1
  else
    skipped "the unit of systemd: there is no systemd-analyze"
  fi
}

# --- Image ----------------------------------------------------------------------------------------

make_image() {
  local tool
  for tool in buildah redis-server npm apt-get; do
    has $tool && continue
    skipped "the image: there is no $tool"
    return
  done
  if [ "$(id -u)" != 0 ]; then
    skipped "the image: its files have owners, for which buildah needs root"
    return
  fi
  # Layers and containers are in the folder of this run, without overlay: nothing is left behind.
  export CONTAINERS_STORAGE_CONF=$work/storage.conf
  printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/containers" "$work/containers-run" \
    >"$CONTAINERS_STORAGE_CONF"
  image_of amd64 $amd64
  [ ${#targets[@]} = 1 ] || image_of arm64 $arm64
  try_image
}

# The image of the Dockerfile, from the static program and without a base.
image_of() { # ARCHITECTURE TARGET
  local files=$work/image-$1 container arguments
  mkdir -p "$files"/{bin,etc/rlaas,etc/ssl/certs,tmp,usr/local/bin,usr/share/doc/rlaas,usr/share/doc/ca-certificates,var/lib}
  cp "$(program "$2")" "$files/usr/local/bin/rlaas"
  # The command of the Deployment of Envoy Gateway.
  ln -s /usr/local/bin/rlaas "$files/bin/ratelimit"
  cp config/container.yaml "$files/etc/rlaas/container.yaml"
  cp config/empty.yaml "$files/etc/rlaas/rlaas.yaml"
  cp LICENSE-MIT LICENSE-APACHE THIRD_PARTY_NOTICES.txt "$files/usr/share/doc/rlaas"
  ca_bundle "$files"
  echo 'rlaas:x:65532:65532::/var/lib/rlaas:/nologin' >"$files/etc/passwd"
  echo 'rlaas:x:65532:' >"$files/etc/group"
  chmod 1777 "$files/tmp"
  mkdir -p "$work/state/rlaas"
  chmod 0700 "$work/state/rlaas"

  arguments=$(sed -n 's/^CMD \["\(.*\)"\]$/\1/p' Dockerfile)
  container=$(buildah from --arch "$1" scratch)
  buildah copy --quiet "$container" "$files" /
  buildah copy --quiet --chown 65532:65532 "$container" "$work/state" /var/lib
  buildah config --arch "$1" --user 65532:65532 --port 50051 --port 8080 \
    --entrypoint "$(sed -n 's/^ENTRYPOINT //p' Dockerfile)" --cmd "${arguments//\", \"/ }" \
    --label org.opencontainers.image.title=rlaas --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" \
    --label "org.opencontainers.image.licenses=MIT OR Apache-2.0" "$container"
  buildah commit --quiet --rm --disable-compression=false --timestamp "$(git log -1 --format=%ct)" \
    "$container" "oci-archive:$out/image/rlaas-image-$version-linux-$1.tar:rlaas:$version"
}

# The authorities of Debian's package, not those of this machine, which may have more.
ca_bundle() { # FOLDER
  if [ ! -d "$work/ca" ]; then
    (cd "$work" && apt-get -qq -o "APT::Sandbox::User=$(id -un)" download ca-certificates \
      && dpkg-deb --extract ca-certificates_*.deb ca)
  fi
  cat "$work"/ca/usr/share/ca-certificates/mozilla/*.crt >"$1/etc/ssl/certs/ca-certificates.crt"
  cp "$work/ca/usr/share/doc/ca-certificates/copyright" "$1/usr/share/doc/ca-certificates"
}

# Runs the image as its user: health, decisions in Redis over TLS, tokens of an issuer, files in the folder of state.
# The authority of Redis is given by a setting, that of the issuer is added to the bundle.
try_image() {
  local container redis issuer command folder user=(--isolation chroot)
  start_redis
  start_issuer
  grpc=127.0.0.1:$(free_port)
  http=127.0.0.1:$(free_port)
  container=$(buildah from --quiet "oci-archive:$out/image/rlaas-image-$version-linux-amd64.tar")
  folder=$(buildah mount "$container")
  cat "$work/issuer-authority.pem" >>"$folder/etc/ssl/certs/ca-certificates.crt"
  cp "$work/redis-authority.pem" "$folder/etc/rlaas/redis.pem"
  command=$(buildah inspect --format \
    '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}{{range .OCIv1.Config.Cmd}}{{.}} {{end}}' "$container")
  # shellcheck disable=SC2086 # several words
  buildah run "${user[@]}" --env "REDIS_URL=rediss://localhost:$redis" \
    --env RLAAS_STORE__REDIS__TLS__CA=/etc/rlaas/redis.pem \
    --env "RLAAS_AUTH__OIDC__ISSUER=$issuer" --env RLAAS_AUTH__OIDC__AUDIENCE=rlaas \
    --env RLAAS_STATE_DIR=/var/lib/rlaas \
    --env "RLAAS_SERVER__LISTEN=$grpc" --env "RLAAS_SERVER__HTTP=$http" "$container" -- $command \
    >"$work/serve.log" 2>&1 &
  running+=($!)
  eventually curl -sf "http://$http/readyz"
  buildah run "${user[@]}" "$container" -- rlaas health --addr "$grpc"
  buildah run "${user[@]}" "$container" -- /bin/ratelimit --version
  try_tokens
  redis-cli --tls --cacert "$work/redis-authority.pem" -p "$redis" keys '*alice*' | grep alice
  find "$folder/var/lib/rlaas" -type f -user 65532 -printf '/var/lib/rlaas/%P\n' | grep .
  end
}

try_tokens() {
  local token
  token=$(curl -sf --cacert "$work/issuer-authority.pem" --user shop:secret-of-shop \
    --data grant_type=client_credentials --data resource=urn:rlaas:RS256 "$issuer/token" \
    | sed 's/.*"access_token":"\([^"]*\)".*/\1/')
  # 503 until the keys of the issuer are there.
  eventually status_is 200 "$token"
  buildah run "${user[@]}" --env "RLAAS_TOKEN=$token" "$container" -- rlaas check --addr "$grpc" alice
  # The same token with another signature, and none.
  status_is 401 "${token%.*}.$(printf '%0342d' 0)"
  status_is 401 ""
}

status_is() { # STATUS TOKEN
  local status
  status=$(curl -s -o "$work/response.log" -w '%{http_code}' ${2:+-H "authorization: Bearer $2"} \
    -d '{"userId":"curl"}' "http://$http/v1/check")
  [ "$status" = "$1" ] || { echo "$status, not $1"; return 1; } >&2
}

# Sets $redis, its port.
start_redis() {
  certificate redis
  redis=$(free_port)
  redis-server --port 0 --tls-port "$redis" --bind 127.0.0.1 --save "" --tls-auth-clients no \
    --tls-cert-file "$work/redis.pem" --tls-key-file "$work/redis.key" \
    --tls-ca-cert-file "$work/redis-authority.pem" >"$work/redis.log" &
  running+=($!)
  eventually redis-cli --tls --cacert "$work/redis-authority.pem" -p "$redis" ping
}

# Sets $issuer, its URL.
start_issuer() {
  certificate issuer
  copy tests/issuer
  cd "$work/copy/tests/issuer"
  npm ci --silent
  node issuer.js '{ "port": 0, "keys": [{ "kid": "release", "alg": "RS256" }],
    "clients": { "shop": { "roles": ["check"] } }, "cert": "'"$work"'/issuer.pem", "key": "'"$work"'/issuer.key" }' \
    >"$work/issuer.log" 2>&1 &
  running+=($!)
  cd "$root"
  eventually grep ^https: "$work/issuer.log"
  issuer=$(grep ^https: "$work/issuer.log")
}

# A certificate for localhost and an authority that signs it alone: NAME.pem with NAME.key, NAME-authority.pem.
certificate() { # NAME
  local new=(openssl req -x509 -config "$root/crates/testkit/src/openssl.conf" -newkey ec
    -pkeyopt ec_paramgen_curve:P-256 -noenc -days 1)
  "${new[@]}" -extensions authority -subj "/CN=$1-authority" -keyout "$work/$1-authority.key" \
    -out "$work/$1-authority.pem" 2>>"$work/openssl.log"
  "${new[@]}" -extensions server -subj "/CN=$1" -CA "$work/$1-authority.pem" -CAkey "$work/$1-authority.key" \
    -keyout "$work/$1.key" -out "$work/$1.pem" 2>>"$work/openssl.log"
}

# --- Packages -------------------------------------------------------------------------------------

make_chart() {
  if ! scripts/tool.sh helm version >/dev/null; then
    skipped "the chart: there is no helm, and go has not built it"
    return
  fi
  scripts/tool.sh helm package --destination "$out/chart" charts/rlaas
  mkdir "$work/chart"
  cd "$work/chart"
  "$root/scripts/tool.sh" helm template rlaas "$out/chart/rlaas-$version.tgz" \
    --kube-version 1.29.0 >manifests.yaml
  cd "$root"
  grep "image: .*:$version" "$work/chart/manifests.yaml"
}

# cargo builds each crate from its package, with the packages that it needs. rlaas-testkit is for tests alone.
make_crates() {
  local built=${CARGO_TARGET_DIR:-$root/target}/packaged
  # cargo takes two packages of one version for the same: those of an earlier run, and what was built of them.
  rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/rlaas*-"$version" "$built"/debug/.fingerprint/rlaas*
  copy .
  cd "$work/copy"
  sed -i '/^\[workspace\.package\]/,/^$/s/^publish = false/publish = true/' Cargo.toml
  CARGO_TARGET_DIR=$built cargo package --workspace --exclude rlaas-testkit --locked
  cd "$root"
  cp "$built"/package/*-"$version".crate "$out/crates"
  serve "$built/debug/rlaas"
  end
}

# The names of the packages are those of their manifests.
make_wheel() {
  local name
  name=$(sed -n 's/^name = "\(.*\)"$/\1/p' clients/python/pyproject.toml)
  copy clients/python
  python3 -m venv "$work/python"
  "$work/python/bin/pip" wheel --quiet --no-deps --wheel-dir "$out/wheel" "$work/copy/clients/python"
  "$work/python/bin/pip" install --quiet "$out"/wheel/*.whl
  serve "$(program $amd64)"
  cd "$work/python"
  bin/python -c 'import importlib, sys
print(importlib.import_module(sys.argv[1]).Client(sys.argv[2]).check("python"))' "${name//-/_}" "$grpc" \
    | grep "answered_by='server'"
  cd "$root"
  end
}

make_npm() {
  copy clients/node
  cd "$work/copy/clients/node"
  npm ci --silent
  npm pack --silent --pack-destination "$out/npm"
  mkdir "$work/node"
  cd "$work/node"
  npm install --silent "$out"/npm/*.tgz
  serve "$(program $amd64)"
  node --input-type=module -e '
    const { Client } = await import(process.argv[1]);
    console.log(await new Client(process.argv[2]).check({ userId: "node" }));
    process.exit();' "$(node -p 'require(process.argv[1]).name' "$root/clients/node/package.json")" "$grpc" \
    | grep "answeredBy: 'server'"
  cd "$root"
  end
}

# A module has no file: its release is the tag clients/go/vVERSION.
make_go() {
  local module
  module=$(sed -n 's/^module //p' clients/go/go.mod)
  copy clients/go
  mkdir "$work/go"
  cd "$work/go"
  cat >main.go <<PROGRAM
package main

import (
	"context"
	"fmt"
	"os"

	rlaas "$module"
)

func main() {
	verdict, err := rlaas.MustNew(os.Args[1]).Check(context.Background(), rlaas.Request{UserID: "go"})
	fmt.Println(verdict.Allowed, verdict.AnsweredBy, err)
}
PROGRAM
  go mod init program
  go mod edit -replace="$module=$work/copy/clients/go"
  go mod tidy
  serve "$(program $amd64)"
  go run . "$grpc" | grep 'true server <nil>'
  cd "$root"
  end
}

# --- The command line -----------------------------------------------------------------------------

steps="archives image chart crates wheel npm go"
# shellcheck disable=SC2086 # several words
[ $# -gt 0 ] || if [ "$host" = $amd64 ]; then set -- $steps; else set -- archives; fi
for step in "$@"; do
  if [[ " $steps " != *" $step "* ]]; then
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 64
  fi
done
for step in "$@"; do
  echo "== $step"
  rm -rf "${out:?}/$step"
  mkdir -p "$out/$step"
  "make_$step"
done
cd "$out"
find . -type d -empty -delete
sum() { if has sha256sum; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
find . -mindepth 2 -type f | sed 's|^\./||' | sort | while read -r file; do sum "$file"; done >SHA256SUMS
[ ! -s SHA256SUMS ] || sum -c SHA256SUMS
grep -q '^repository = ' "$root/Cargo.toml" \
  || echo "NOTE: these files have no address of a repository: scripts/set-repository.sh writes it, before the first release"
