"""Limits a Flask application, by its users' API keys. Run: flask --app flask_app run"""

from flask import Flask

from rlaas_client import Client, keys
from rlaas_client.wsgi import RateLimit

app = Flask(__name__)
client = Client("127.0.0.1:50051", on_no_answer="deny")
app.wsgi_app = RateLimit(app.wsgi_app, client, key=keys.header("x-api-key"))  # type: ignore[method-assign]


@app.get("/")
def index() -> dict[str, str]:
    return {"hello": "world"}
