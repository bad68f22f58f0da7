"""A client of rlaas, a rate limiting service. `rlaas.asgi` and `rlaas.wsgi` are middleware."""

from rlaas._base import Held
from rlaas._proto.ratelimit_pb2 import CheckRequest, CheckResponse
from rlaas._request import Error
from rlaas.async_client import AsyncClient
from rlaas.client import Client
from rlaas.verdict import Verdict

__all__ = ["AsyncClient", "CheckRequest", "CheckResponse", "Client", "Error", "Held", "Verdict"]
