"""The only team of LiteLLM's proxy, by its `custom_auth`, without a database."""

import os

from fastapi import Request
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    limit = os.environ.get("RACE_TPM_LIMIT")
    return UserAPIKeyAuth(api_key=api_key, team_id="race", team_tpm_limit=int(limit) if limit else None)
