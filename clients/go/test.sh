#!/usr/bin/env bash
# Checks, tests and builds the module, from a clean copy of its folder too. RLAAS_CASES is the address of the server
# that plays ../cases.yaml, RLAAS_SERVER the path of the binary rlaas; tests without theirs are skipped.
set -euo pipefail
cd "$(dirname "$0")"

export GOMODCACHE="$PWD/.cache/modules" GOCACHE="$PWD/.cache/build" GOFLAGS="-modcacherw -mod=readonly -buildvcs=false"
[ -n "${RLAAS_CASES:-}" ] || echo "SKIPPED clients/go: the table of cases, because RLAAS_CASES is unset"
[ -n "${RLAAS_SERVER:-}" ] || echo "SKIPPED clients/go: tests with a server, because RLAAS_SERVER is unset"

unformatted=$(gofmt -l ./*.go examples rlaastest)
[ -z "$unformatted" ] || { echo "gofmt: $unformatted" >&2; exit 1; }
go vet ./...
# The detector of races needs a C compiler.
race=()
if [ "$(go env CGO_ENABLED)" = 1 ] && command -v gcc >/dev/null; then race=(-race); fi
go test -count=1 -timeout 120s ${race[@]+"${race[@]}"} ./...

# A program of another module, which has a copy of what this one publishes.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/module" "$work/program"
cp -r ./*.go go.mod go.sum ratelimitv1 rlaastest "$work/module"
cd "$work/program"
cat >main.go <<'PROGRAM'
package main

import (
	"context"
	"fmt"

	rlaas "rlaas.example/clients/go"
)

func main() {
	verdict, err := rlaas.MustNew("unix:/nowhere").Check(context.Background(), rlaas.Request{UserID: "alice"})
	fmt.Println(verdict.Allowed, verdict.AnsweredBy, err)
}
PROGRAM
go mod init program >/dev/null 2>&1
go mod edit -require=rlaas.example/clients/go@v0.1.0 -replace="rlaas.example/clients/go=$work/module"
GOFLAGS="-modcacherw -mod=mod" go mod tidy >/dev/null 2>&1
said=$(go run . 2>/dev/null)
[ "$said" = "true policy <nil>" ] || { echo "the program said: $said" >&2; exit 1; }
echo "clients/go: passed"
