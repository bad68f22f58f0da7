#!/usr/bin/env bash
# Writes src/rlaas_client/_proto, or the folder that is named, from the .proto files of the repository.
#
# The version of grpcio-tools decides which versions of protobuf can run the code: 1.74 writes code for
# protobuf 6.31, which 6.31 and later and all of 7 run.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-src/rlaas_client/_proto}
protos=../../proto

if [ ! -x .cache/generate/bin/python ]; then
  "${PYTHON:-python3}" -m venv .cache/generate
  .cache/generate/bin/pip install --quiet grpcio-tools==1.74.0 protobuf==6.33.6 setuptools==80.9.0
fi
mkdir -p "$out"
.cache/generate/bin/python -m grpc_tools.protoc -I "$protos" --python_out="$out" --pyi_out="$out" \
  ratelimit.proto reservation.proto
# protoc knows top-level modules only, whose names would be too general for a package.
sed -i 's/^import ratelimit_pb2 as/from . import ratelimit_pb2 as/' "$out"/reservation_pb2.py*
printf '"""Messages, written by generate.sh."""\n' > "$out/__init__.py"
