#!/bin/bash
# What 10,000 projects of 10 rules cost: a start from Redis, memory, and a decision by API key.
#
# cargo build --profile dist && scripts/projects-cost.sh [PROJECTS] [ROUNDS] [SECONDS]
#
# One server writes the projects into a Redis of its own and decides without API keys. Another one
# starts beside it, while the first is under load. Prints the time until the second one is ready with
# all projects, the latency and the failures of the first meanwhile and before, which commands of the start
# held Redis for more than 1 ms, the memory of both, and the rates of Check by API key and without one,
# interleaved. Fails if the start takes more than 2 s, or a check by key more than 1.15 times as long.
#
# The second server runs at `nice -n 19`, since in production it has a machine of its own: what the
# first one loses is then what the start does to Redis, not to the processor. NICE=0 lets both compete.
set -euo pipefail
cd "$(dirname "$0")/.."
projects=${1:-10000} rounds=${2:-7} seconds=${3:-3}
rlaas=${RLAAS:-target/dist/rlaas}
cargo bench --quiet --no-run --bench load
folder=$(mktemp -d)
children=()
nice=0
trap 'kill "${children[@]}" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

redis-server --port 0 --unixsocket "$folder/redis" --save '' --dir "$folder" >"$folder/redis.log" &
children+=($!)
until redis-cli -s "$folder/redis" ping >/dev/null 2>&1; do sleep 0.1; done

start() { # NAME SETTING...: a server on a socket; sets `pid`
  local name=$1
  shift
  nice -n "$nice" "$rlaas" serve --set "server.listen=unix:$folder/$name" --set "server.http=unix:$folder/$name.http" \
    --set store.backend=redis --set "store.redis.url=unix:$folder/redis" \
    --set rate-limiter.use-algo=gcra --set rate-limiter.max-requests=1000000 \
    "${@/#/--set=}" 2>"$folder/$name.log" &
  pid=$!
  children+=("$pid")
}

until_ready() { # NAME: waits until a server is ready
  until curl -sf --unix-socket "$folder/$1.http" localhost/readyz >/dev/null; do sleep 0.01; done
}

bench() { # NAME EXPRESSION OPTION...: a load, of whose result `r` this is printed
  local name=$1 expression=$2
  shift 2
  cargo bench --quiet --bench load -- --addr "unix:$folder/$name" --ids 100000 --json "$@" |
    python3 -c "import json, sys; r = json.load(sys.stdin); print($expression)"
}

in_redis() {
  redis-cli -s "$folder/redis" "$@"
}

start first
# shellcheck disable=SC2034 # read as ${!name}
first=$pid
until_ready first
python3 - "$folder/first.http" "$projects" "$folder/key" <<'END'
import http.client, json, socket, sys, time
path, projects, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)

def post(target, message):
    connection.request("POST", target, json.dumps(message), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    assert response.status in (200, 201), body
    return json.loads(body)

began = time.monotonic()
for number in range(projects):
    project = f"project-{number}"
    post("/v1/projects", {"project": {"id": project}})
    rules = [{"name": f"rule-{rule}", "algorithm": "GCRA", "maxRequests": 1000000, "window": "60s",
              "matchers": [{"part": "resource", "anyOf": [f"/{rule}"]}]} for rule in range(10)]
    post(f"/v1/projects/{project}/rules:apply", {"rules": rules})
    secret = post(f"/v1/projects/{project}/keys", {})["secret"]
open(key, "w").write(secret)
print(f"{3 * projects} writes: {time.monotonic() - began:.1f} s")
END
export RLAAS_API_KEY
RLAAS_API_KEY=
neighbour='"p99 {} µs, failures {}".format(r["latencyUs"]["p99"], r["errors"] or "none")'
calm=$(bench first "$neighbour" --rate 2000 --duration 5s)
bench first "$neighbour" --rate 2000 --duration 5s --warm-up 0s >"$folder/meanwhile" &
load=$!
sleep 1
in_redis config set slowlog-log-slower-than 1000 >/dev/null
in_redis config set slowlog-max-len 100000 >/dev/null
in_redis slowlog reset >/dev/null
in_redis config set latency-monitor-threshold 1 >/dev/null
in_redis latency reset >/dev/null
nice=${NICE:-19}
began=$(date +%s%N)
start second auth.api-keys=accepted
# shellcheck disable=SC2034 # read as ${!name}
second=$pid
until_ready second
started=$((($(date +%s%N) - began) / 1000000))
echo "start to ready: $started ms"
in_redis --json slowlog get 100000 | python3 -c '
import json, sys
calls = [(call[2], call[3]) for call in json.load(sys.stdin)]
ours = [call for call in calls if any("rlaas:catalog" in word for word in call[1])]
others = [micros for micros, words in calls if (micros, words) not in ours]
print(f"commands that held Redis for more than 1 ms meanwhile: {len(ours)} of the catalogue,",
      f"{len(others)} others, the longest {max(others, default=0)} µs")
for micros, words in ours:
    print(f"  {micros} µs:", words[0], *(words[15:16] or words[1:2]))'
echo "events in Redis of 1 ms or more (name, time, last ms, longest ms):" \
  "$(in_redis latency latest | paste -sd " ")"
wait "$load"
echo "the other instance: before $calm; meanwhile $(cat "$folder/meanwhile")"
for name in first second; do
  echo "memory of $name: $(awk '/VmRSS/ {print $2 / 1024 " MiB"}' "/proc/${!name}/status")"
done
for round in $(seq "$rounds"); do
  order=(none key)
  if ((round % 2)); then order=(key none); fi
  for name in "${order[@]}"; do
    if [ "$name" = key ]; then RLAAS_API_KEY=$(cat "$folder/key"); else RLAAS_API_KEY=; fi
    bench second 'r["decisionsPerSecond"]' --resource /7 --duration "${seconds}s" --warm-up 1s |
      tee -a "$folder/$name.rates" | sed "s/^/$round $name /"
  done
done
python3 - "$folder/none.rates" "$folder/key.rates" "$started" <<'END'
import statistics, sys
none, key = ([float(line) for line in open(name)] for name in sys.argv[1:3])
ratio = statistics.median(n / k for n, k in zip(none, key))
print(f"median without {statistics.median(none):.0f}/s, by key {statistics.median(key):.0f}/s: "
      f"a check by key takes {ratio:.3f} times as long")
sys.exit(ratio > 1.15 or int(sys.argv[3]) > 2000)
END
