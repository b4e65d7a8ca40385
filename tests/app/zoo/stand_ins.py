"""A data set of two tiny files, and a web server that gives them."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from adadp.app.zoo import DataFile, DataSet

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


def client(folder, name, archive, content, code=0, said=""):
    """Put a program called ``name`` into ``folder``: it notes how it was called and leaves ``archive`` where it is."""
    (folder / "archive").write_bytes(content)
    (folder / name).write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, shutil, sys\n"
        f"here = pathlib.Path({str(folder)!r})\n"
        "(here / 'calls').write_text(json.dumps(sys.argv[1:]))\n"
        f"if {code} == 0:\n    shutil.copy(here / 'archive', {archive!r})\n"
        f"sys.stderr.write({said!r})\nsys.exit({code})\n"
    )
    (folder / name).chmod(0o755)


def tar_of(files, inside="", mode="w:gz"):
    """A tar of ``files``, their names after ``inside``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(inside + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


class Server:
    """A web server that answers ``answers[path]`` and writes down what it was asked.

    ``cut`` closes the connection after so many bytes; ``pause`` waits that long before each of 20 pieces. ``ranges``
    says what is done when the rest of a file is asked for: "give" it, "ignore" that, or give "another" piece. With
    ``no_length`` it does not say how long a file is; ``encoding`` is what it calls the zipping of one.
    ``moved`` is a place where it sends everybody.
    """

    def __init__(self):
        self.answers = {f"/{name}.gz": gzip.compress(content) for name, content in FILES.items()}
        self.asked = []
        self.rests = []
        self.sent = 0
        self.ranges = "ignore"
        self.no_length = False
        self.encoding = None
        self.cut = None
        self.pause = 0.0
        self.moved = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                answer = outer.answers.get(self.path)
                if outer.moved is not None:
                    self.send_response(302)
                    self.send_header("Location", f"{outer.moved}passwd")
                    self.end_headers()
                    return
                start = self._start(answer)
                if start is not None and start >= len(answer):
                    self.send_error(416)
                    return
                self.send_response(404 if answer is None else 200 if start is None else 206)
                if start is not None:
                    self.send_header("Content-Range", f"bytes {start}-{len(answer) - 1}/{len(answer)}")
                answer = (answer or b"")[start or 0 :]
                if outer.encoding:
                    self.send_header("Content-Encoding", outer.encoding)
                if not outer.no_length:
                    self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                body = answer[: outer.cut]
                for start in range(0, len(body), len(body) // 20 + 1):
                    time.sleep(outer.pause)
                    try:
                        self.wfile.write(body[start : start + len(body) // 20 + 1])
                    except ConnectionError:  # the client was killed, which is the point of the test
                        return
                    outer.sent += len(body) // 20

            def _start(self, answer):
                """The byte a piece of the file starts with, None if the whole file is given."""
                asked = self.headers.get("Range")
                outer.rests.append(asked)
                if asked is None or answer is None or outer.ranges == "ignore":
                    return None
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                return start if outer.ranges == "give" else start + 1

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
