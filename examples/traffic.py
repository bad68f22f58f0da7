#!/usr/bin/env python3
"""Writes an access log in the combined format, to try `rlaas simulate` on.

    examples/traffic.py zipf > zipf.log
    examples/traffic.py flash-crowd > crowd.log

zipf: an ordinary hour. Few clients make most of the requests: the n-th client makes requests with
a probability proportional to 1/n. flash-crowd: the same, and within ten minutes a crowd of
new clients that all ask for the same page.

The same arguments always write the same log.
"""

import argparse
import datetime
import random
import sys

START = datetime.datetime(2026, 1, 5, 12, tzinfo=datetime.timezone.utc)
PATHS = ["/", "/search?q=shoes", "/items/1", "/items/2", "/items/3", "/cart", "/login"]
AGENT = "Mozilla/5.0 (X11; Linux x86_64)"


def address(number):
    """Returns the address of a client: all of 10.0.0.0/8 is private."""
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def ordinary(rng, requests, clients, seconds):
    """Yields times and clients: few clients make most of the requests."""
    weights = [1 / rank for rank in range(1, clients + 1)]
    for client in rng.choices(range(clients), weights=weights, k=requests):
        yield rng.uniform(0, seconds), client, rng.choice(PATHS)


def crowd(rng, requests, clients, seconds):
    """Yields times and clients of a crowd: it comes within a minute and leaves slowly."""
    begin = seconds * 0.5
    for _ in range(requests):
        at = begin + min(rng.expovariate(1 / 120), 600) + rng.uniform(0, 60)
        yield at, clients + rng.randrange(clients), "/items/1"


def line(at, client, path, rng):
    stamp = (START + datetime.timedelta(seconds=int(at))).strftime("%d/%b/%Y:%H:%M:%S %z")
    size = rng.randrange(200, 20000)
    return f'{address(client + 1)} - - [{stamp}] "GET {path} HTTP/1.1" 200 {size} "-" "{AGENT}"'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=["zipf", "flash-crowd"])
    parser.add_argument("--requests", type=int, default=20000, help="ordinary requests")
    parser.add_argument("--clients", type=int, default=1000, help="ordinary clients")
    parser.add_argument("--seconds", type=int, default=3600, help="length of the log")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    requests = list(ordinary(rng, args.requests, args.clients, args.seconds))
    if args.kind == "flash-crowd":
        requests += crowd(rng, args.requests // 2, args.clients, args.seconds)
    requests.sort(key=lambda request: request[0])
    try:
        for at, client, path in requests:
            print(line(at, client, path, rng))
    except BrokenPipeError:
        sys.stderr.close()


if __name__ == "__main__":
    main()
