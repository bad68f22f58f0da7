#!/bin/bash
# What recording costs decisions: rates over gRPC without and with it, interleaved.
#
# cargo build --profile dist && scripts/record-cost.sh [ROUNDS] [SECONDS]
#
# Two servers run at the same time, one of them records. They are loaded one after the other, in
# each round in the other order, so that both see the same state of the machine. Prints the rate of
# each run, and the ratio of the medians: recording may cost at most 2 %.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091 # a path of this repository
source scripts/interleave.sh
rounds=${1:-10} seconds=${2:-5}
rlaas=${RLAAS:-target/dist/rlaas}
folder=$(mktemp -d)
servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

start() { # NAME SETTING...: a server on a socket
  local name=$1
  shift
  "$rlaas" serve --set "server.listen=unix:$folder/$name" --set server.http=127.0.0.1:0 \
    --set rate-limiter.use-algo=gcra --set rate-limiter.max-requests=1000000 \
    "${@/#/--set=}" 2>"$folder/$name.log" &
  servers+=($!)
  for _ in $(seq 100); do
    if "$rlaas" health --addr "unix:$folder/$name" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  cat "$folder/$name.log"
  return 1
}

rate() { # NAME: decisions per second
  "$rlaas" bench --addr "unix:$folder/$1" --duration "${seconds}s" --warm-up 1s --ids 100000 --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["decisionsPerSecond"])'
}

start off
start on "telemetry.record.file=$folder/requests.jsonl"
interleave "$rounds" "$folder"
python3 - "$folder/off.rates" "$folder/on.rates" <<'END'
import statistics, sys
off, on = (statistics.median(float(line) for line in open(name)) for name in sys.argv[1:])
print(f"median off {off:.0f}/s, on {on:.0f}/s: recording costs {100 * (1 - on / off):.2f} %")
END
