#!/usr/bin/env bash
# Checks, tests and builds the package. RLAAS_CASES and RLAAS_SERVER are the servers of tests/conftest.py, without
# which most tests are skipped.
set -euo pipefail
cd "$(dirname "$0")"
bin=.cache/test/bin

[ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv .cache/test
"$bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
if [ -d ../../proto ]; then
  ./generate.sh .cache/proto
  diff -r --exclude=__pycache__ .cache/proto src/rlaas_client/_proto
fi
"$bin/ruff" format --check --quiet
"$bin/ruff" check --quiet
"$bin/mypy"
"$bin/pytest"

# The wheel in an environment that has only what it requires.
rm -rf dist .cache/empty
"$bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
"${PYTHON:-python3}" -m venv .cache/empty
.cache/empty/bin/pip install --quiet --disable-pip-version-check dist/*.whl
cd .cache/empty
bin/python -W error -c '
import os, pathlib, rlaas_client.asgi, rlaas_client.llm, rlaas_client.testing, rlaas_client.wsgi
with rlaas_client.Client(os.environ.get("RLAAS_CASES") or "127.0.0.1:1") as client:
    print(client.check("allowed@wheel"))
assert pathlib.Path(rlaas_client.__file__).with_name("py.typed").exists()'
