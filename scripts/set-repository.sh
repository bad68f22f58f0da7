#!/usr/bin/env bash
# Writes the address of the repository into all tracked files that need it: the manifests of all packages, go.mod and
# the imports of Go, go_package of the protos and the code generated from it, READMEs, the chart and install.sh.
#
#   scripts/set-repository.sh https://github.com/OWNER/NAME
#
# Once, before the first release. The Go module is below the address, at clients/go.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "set-repository.sh: $*" >&2
  exit 1
}

export address=${1:-}
export path=${address#https://}
[[ $address =~ ^https://[a-z0-9.-]+(/[A-Za-z0-9._-]*[A-Za-z0-9_-])+$ && $address != *.git && ${#path} -le 80 ]] \
  || fail "the address must be like https://github.com/OWNER/NAME, of at most 80 characters"
! grep -q '^repository = ' Cargo.toml || fail "the files have an address already: $(grep '^repository = ' Cargo.toml)"

# Writes a line after the first one that begins so.
after() { # FILE BEGINNING LINE
  grep -q "^$2" "$1" || fail "$1 has no line that begins with: $2"
  beginning=$2 line=$3 perl -0 -pi -e 's/^\Q$ENV{beginning}\E.*\n/$&$ENV{line}\n/m' "$1"
}
after Cargo.toml 'license = ' "repository = \"$address\""
for manifest in Cargo.toml crates/*/Cargo.toml; do
  after "$manifest" 'license.workspace = true' 'repository.workspace = true'
done
after clients/node/package.json '  "license": ' "  \"repository\": \"$address\","
after clients/python/pyproject.toml 'license-files = ' "urls = { Repository = \"$address\" }"
after charts/rlaas/Chart.yaml 'type: application' "home: $address"
perl -pi -e 's/RLAAS_RELEASES:-\}/RLAAS_RELEASES:-$ENV{address}\/releases\/download}/' install.sh

# A descriptor in generated code has the lengths of go_package and of the options, 4 bytes more, before them. Both are
# visible characters, because the path is at most 80 long.
module='rlaas\.example'/clients/go proto='rlaas/ratelimit'/
# shellcheck disable=SC2016 # variables of Perl
git grep -l -I -z -e "$module" -e "\"${proto}v1;" -e "${proto}v1;ratelimitv1" -e "\"${proto}admin/v1;" \
  | module=$module proto=$proto xargs -0 perl -pi -e '
    BEGIN { $package = "$ENV{path}/clients/go/ratelimitv1;ratelimitv1" }
    sub length_byte { my $byte = chr(length($package) + shift); $byte eq "\\" ? "\\\\" : $byte }
    s{B\\"P(\\x01|\\001)Z\\(x1e|036)\Q$ENV{proto}\Ev1;ratelimitv1}{"B" . length_byte(4) . "P$1Z" . length_byte(0) . $package}ge;
    s{P\\001Z\\036\Q$ENV{proto}\Ev1;ratelimitv1}{"P\\001Z" . length_byte(0) . $package}ge;
    s{"\Q$ENV{proto}\Ev1;ratelimitv1"}{"$package"}g;
    s{"\Q$ENV{proto}\Eadmin/v1;adminv1"}{"$ENV{path}/clients/go/adminv1;adminv1"}g;
    s{$ENV{module}}{$ENV{path}/clients/go}g;'
