"""A client of rlaas, a rate limiting service. `rlaas_client.asgi` and `rlaas_client.wsgi` are middleware."""

import os

# Before gRPC is imported, which else writes to standard error with each attempt to connect to a wrong address.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from rlaas_client._base import Held
from rlaas_client._proto.ratelimit_pb2 import CheckRequest, CheckResponse
from rlaas_client._request import Error
from rlaas_client.async_client import AsyncClient
from rlaas_client.client import Client
from rlaas_client.verdict import Verdict

__all__ = ["AsyncClient", "CheckRequest", "CheckResponse", "Client", "Error", "Held", "Verdict"]
