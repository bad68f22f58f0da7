#!/bin/bash
# What open consoles cost decisions: rates over gRPC without and with them, interleaved.
#
# cargo build --profile dist && scripts/console-cost.sh [CONSOLES] [ROUNDS] [SECONDS]
#
# One server of 1,000 rules is loaded again and again, in each round once while that many consoles watch the
# page Now, each as a browser does: a stream of events, and a load of the page for each. The order
# changes with the round. Consoles run on the same machine, so their own time counts as cost too.
# Prints the rate of each run, and the median of the ratios of the rounds: 8 consoles may cost at most 2 %.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091 # a path of this repository
source scripts/interleave.sh
consoles=${1:-8} rounds=${2:-10} seconds=${3:-12}
rlaas=${RLAAS:-target/dist/rlaas}
cargo bench --quiet --no-run --bench load
folder=$(mktemp -d)
children=()
trap 'kill "${children[@]}" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

{
  echo "rules:"
  for rule in $(seq 1000); do
    echo "  - {name: rule-$rule, endpoint: /$rule, algorithm: gcra, limit: 1000000, window: 60s}"
  done
} >"$folder/rlaas.yaml"
"$rlaas" serve --config "$folder/rlaas.yaml" --set "server.listen=unix:$folder/grpc" \
  --set server.http=127.0.0.1:0 --set server.console=127.0.0.1:0 2>"$folder/log" &
children+=($!)
until address=$(grep -o 'console=[^ ]*' "$folder/log"); do
  if ! kill -0 "${children[0]}"; then
    cat "$folder/log"
    exit 1
  fi
  sleep 0.1
done
address=${address#console=}

cat >"$folder/console.py" <<'END'
import http.client, sys
host = sys.argv[1]
stream = http.client.HTTPConnection(host)
stream.request("GET", "/console/now-events")
events = stream.getresponse()
page = http.client.HTTPConnection(host)
while line := events.readline():
    if line == b"event: new\n":
        page.request("GET", "/console/now", headers={"X-Console-Live": "1"})
        response = page.getresponse()
        body = response.read()
        assert response.status == 200 and b'id="live"' in body, response.status
        with open(sys.argv[2], "a") as loads:
            print(len(body), file=loads)
END

rate() { # NAME: decisions per second, while consoles watch if the name is "on"
  local watching=()
  if [ "$1" = on ]; then
    for console in $(seq "$consoles"); do
      python3 "$folder/console.py" "$address" "$folder/loads-$console" &
      watching+=($!)
    done
    children+=("${watching[@]}")
    sleep 1
  fi
  cargo bench --quiet --bench load -- --addr "unix:$folder/grpc" --duration "${seconds}s" --warm-up 1s --ids 100000 --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["decisionsPerSecond"])'
  if [ "$1" = on ]; then
    kill "${watching[@]}"
    wait "${watching[@]}" 2>/dev/null || true
  fi
}

interleave "$rounds" "$folder"
echo "$(cat "$folder"/loads-* | wc -l) loads of the page"
python3 - "$folder/off.rates" "$folder/on.rates" "$consoles" <<'END'
import statistics, sys
off, on = ([float(line) for line in open(name)] for name in sys.argv[1:3])
ratio = statistics.median(n / f for f, n in zip(off, on))
print(f"median off {statistics.median(off):.0f}/s, on {statistics.median(on):.0f}/s: "
      f"{sys.argv[3]} consoles cost {100 * (1 - ratio):.2f} %")
END
