"""A bot in Python's standard library: it checks each launch's signature, runs
it once for each key, and answers with a run id. docs/bots.md tells the rest."""

import base64
import hashlib
import hmac
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def key_of(secret):
    """The key that a bot's secret stands for."""
    if secret.startswith("whsec_"):
        return base64.b64decode(secret[len("whsec_"):])
    return secret.encode()


def verify(key, headers, body, tolerance=300):
    """Standard Webhooks: HMAC-SHA256 over "<id>.<timestamp>.<body>"."""
    msg_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > tolerance:
        return False
    signed = f"{msg_id}.{timestamp}.".encode() + body
    want = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    return any(
        version == "v1" and hmac.compare_digest(want, got.encode())
        for version, _, got in (
            s.partition(",") for s in headers.get("webhook-signature", "").split()
        )
    )


KEY = key_of(os.environ["IMPLEMENTER_SECRET"])
lock = threading.Lock()
runs = {}  # key to run id; a real bot keeps this where a restart finds it


class Bot(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not verify(KEY, self.headers, body):
            return self.answer(401, {"error": "bad signature"})
        launch = json.loads(body)
        key = self.headers["Idempotency-Key"]
        with lock:  # an attempt may overlap with the one before it
            if key not in runs:
                runs[key] = f"run-{len(runs) + 1}"
                print("launched for", launch["card"]["title"], flush=True)
        self.answer(200, {"run_id": runs[key]})

    def answer(self, status, value):
        out = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9000), Bot).serve_forever()
