"""A data set of two tiny files, and a web server that gives them."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from adadp.zoo import DataFile, DataSet

FILES = {"a.bin": bytes(range(250)) * 4, "b.bin": np.random.RandomState(0).bytes(100_000)}


def entry_of(*sources, files=FILES):
    described = tuple(
        DataFile(name, len(content), hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest())
        for name, content in files.items()
    )
    return DataSet(
        name="tiny",
        title="two files",
        citation="nobody",
        licence="none",
        record="a byte",
        scaling="byte / 255",
        split="by file",
        shape=(1,),
        classes=2,
        train_records=1000,
        test_records=100_000,
        default_model="linear",
        files=described,
        read=lambda contents: (_records(contents["a.bin"]), _records(contents["b.bin"])),
        sources=sources,
    )


def _records(content):
    values = np.frombuffer(content, np.uint8)
    return (values[:, None] / 255).astype(np.float32), (values % 2).astype(np.int64)


class Server:
    """A web server that answers ``answers[path]`` and writes down what it was asked.

    ``cut`` closes the connection after so many bytes; ``pause`` waits that long before each of 20 pieces.
    """

    def __init__(self):
        self.answers = {f"/{name}.gz": gzip.compress(content) for name, content in FILES.items()}
        self.asked = []
        self.cut = None
        self.pause = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                answer = outer.answers.get(self.path)
                self.send_response(200 if answer is not None else 404)
                self.send_header("Content-Length", str(len(answer or b"")))
                self.end_headers()
                body = (answer or b"")[: outer.cut]
                for start in range(0, len(body), len(body) // 20 + 1):
                    time.sleep(outer.pause)
                    try:
                        self.wfile.write(body[start : start + len(body) // 20 + 1])
                    except ConnectionError:  # the client was killed, which is the point of the test
                        return

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
