"""Limits a FastAPI application. Run: uvicorn fastapi_app:app"""

from fastapi import FastAPI

from rlaas_client.asgi import RateLimit

app = FastAPI()
app.add_middleware(RateLimit, address="127.0.0.1:50051")


@app.get("/")
async def index() -> dict[str, str]:
    return {"hello": "world"}
