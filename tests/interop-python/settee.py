"""Starts and stops the built binary for the tests of CouchDB's Python clients.

Every server has a free port and a temporary directory of its own. Servers and directories that a test leaves
behind are removed when the process ends.
"""

import atexit
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

# Longest wait for an expected event, in seconds; only a failure takes that long.
WAIT_S_MAX = 60

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TARGET = _ROOT / os.environ.get("CARGO_TARGET_DIR", "target")

# The binary under test.
BINARY = os.environ.get("SETTEE_BIN", str(_TARGET / "debug/settee"))

# Otherwise the clients would send requests for this machine to a proxy that the environment names.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

_LISTENS = re.compile(r"http://127\.0\.0\.1:\d+")


class Server:
    """A running server; `url` is its address, without a trailing slash."""

    def __init__(self, *arguments):
        """Starts `settee serve` with further `arguments`; returns once it has printed its address."""
        self._directory = tempfile.mkdtemp(prefix="settee-test-")
        self._log = tempfile.TemporaryFile()
        command = [BINARY, "serve", "--data-dir", self._directory, "--listen", "127.0.0.1:0", *arguments]
        if "--admin" not in arguments:
            command.append("--no-admin")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTEE_")}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        atexit.register(self.kill)
        self.url = None
        listening = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(listening,), daemon=True)
        self._reader.start()
        listening.wait(WAIT_S_MAX)
        if self.url is None:
            self.kill()
            raise RuntimeError(f"no server: {self._failure}")

    def _read(self, listening):
        """Reads the server's output to its end: a full pipe would block the server."""
        for line in self._process.stdout:
            found = _LISTENS.search(line)
            if found and self.url is None:
                self.url = found.group()
                listening.set()
        listening.set()

    def stop(self):
        """Stops the server by SIGTERM; its exit code must be 0."""
        self._process.terminate()
        code = self._process.wait(WAIT_S_MAX)
        self.kill()
        if code != 0:
            raise RuntimeError(f"the server ended with {code}: {self._failure}")

    def kill(self):
        """Kills the server if it runs, and removes its data."""
        if self._log.closed:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._log.seek(0)
        self._failure = self._log.read().decode(errors="replace")
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        atexit.unregister(self.kill)


class ServerTest(unittest.TestCase):
    """A server for the tests of a class, and unique names of databases."""

    # Further arguments of `settee serve`.
    arguments = ()
    _count = 0

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)
        cls.addClassCleanup(cls.server.stop)

    @classmethod
    def new_name(cls):
        ServerTest._count += 1
        return f"python-{ServerTest._count}"

    def until(self, what, condition):
        """Returns once `condition()` holds; fails with `what` if it never does."""
        end = time.monotonic() + WAIT_S_MAX
        while not condition():
            self.assertLess(time.monotonic(), end, f"timed out: {what}")
            time.sleep(0.02)
