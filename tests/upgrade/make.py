"""Makes the data that the upgrade is tested with.

Run it with the release whose format the next one is to convert:

    python3 make.py path/to/settee

It writes `data.gz`, a data directory after the server was killed, and `NAME.jsonl.gz`, what that release dumps of
each database. In `data.gz` each file is its path's size (4 bytes, little-endian), its path, its size (8 bytes) and
its bytes.
"""

import base64
import gzip
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
URL = "http://127.0.0.1:17984"
USER = "ann:sesame"

# Around the generations at which a path continues in another record.
GENERATIONS = [1, 2, 15, 16, 17, 18, 31, 32, 33, 48, 49, 64, 65, 96, 97, 100]


def request(method, path, body=None, content_type="application/json"):
    call = urllib.request.Request(URL + path, body, method=method)
    call.add_header("Authorization", "Basic " + base64.b64encode(USER.encode()).decode())
    call.add_header("Content-Type", content_type)
    with urllib.request.urlopen(call) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def send(method, path, body=None):
    return request(method, path, None if body is None else json.dumps(body).encode())


def hash_of(*parts):
    return hashlib.md5(repr(parts).encode()).hexdigest()


def start(binary, data):
    server = subprocess.Popen(
        [binary, "serve", "--data-dir", data, "--listen", URL[7:], "--admin", USER],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(200):
        try:
            send("GET", "/_up")
            return server
        except urllib.error.URLError:
            time.sleep(0.05)
    raise SystemExit("the server didn't start")


def edit(path, count, body=lambda n: {"n": n}):
    """Updates a document `count` times, and returns its revision."""
    revision = None
    for n in range(count):
        document = body(n) | ({"_rev": revision} if revision else {})
        revision = send("PUT", path, document)["rev"]
    return revision


def replicated():
    """Leaves with long, short and shared paths, as a replication brings them."""
    leaves = []
    for top, length in [(1, 1), (16, 16), (17, 17), (40, 40), (300, 300), (700, 5), (701, 1)]:
        ids = [hash_of(top, n) for n in range(length)]
        leaves.append({"_id": f"replicated-{top}", "_revisions": {"start": top, "ids": ids}})
    for branch in range(6):
        top = 30 + 7 * branch
        ids = [hash_of(branch, n) for n in range(top - 20)] + [hash_of("trunk", n) for n in range(20)]
        leaf = {"_id": "branches", "_revisions": {"start": top, "ids": ids}, "_deleted": branch % 3 == 0}
        leaves.append(leaf | {"branch": branch})
        ids = [hash_of("short", branch), hash_of("root")]
        leaves.append({"_id": "short-branches", "_revisions": {"start": 2, "ids": ids}, "branch": branch})
    for leaf in leaves:
        leaf["_rev"] = f"{leaf['_revisions']['start']}-{leaf['_revisions']['ids'][0]}"
    return {"new_edits": False, "docs": leaves}


def fill():
    for name in ["documents", "empty", "gone", "parts?partitioned=true", "limits%2Fof"]:
        send("PUT", "/" + name)
    send("PUT", "/gone/x", {})
    send("DELETE", "/gone")
    send("PUT", "/parts/eu:1", {"n": 1})
    for generation in GENERATIONS:
        edit(f"/documents/generation-{generation:03}", generation)
    # More than a batch takes besides its path.
    edit("/documents/large-and-long", 40, lambda n: {"text": "0123456789abcdef" * 20_000 * (n // 39)})
    send("PUT", "/documents/_design/app", {"views": {"a": {"map": "function (doc) {}"}}})
    send("PUT", "/documents/_local/checkpoint", {"seq": 7})
    send("POST", "/documents/_bulk_docs", replicated())
    data = base64.b64encode(b"hello " * 500).decode()
    stored = {"t.txt": {"content_type": "text/plain", "data": data}}
    stubs = {"t.txt": {"stub": True}}
    edit("/documents/attachment", 20, lambda n: {"n": n, "_attachments": stubs if n else stored})
    several_chunks = b"".join(hashlib.sha256(bytes([n % 8])).digest() for n in range(40_000))
    request("PUT", "/documents/large/content", several_chunks, "application/octet-stream")
    removed = edit("/documents/removed", 1)
    send("DELETE", "/documents/removed?rev=" + removed)
    for n in range(3):
        revision = edit(f"/documents/purged-{n}", 2)
        send("POST", "/documents/_purge", {f"purged-{n}": [revision]})
    send("PUT", "/limits%2Fof/_revs_limit", 20)
    send("PUT", "/limits%2Fof/_purged_infos_limit", 5)
    edit("/limits%2Fof/limited", 60)
    # Segments that were rewritten, a tree, and a log after both.
    send("POST", "/documents/_compact", {})
    while send("GET", "/documents")["compact_running"]:
        time.sleep(0.05)
    edit("/documents/after", 40, lambda n: {"n": n, "text": hash_of(n) * 20})
    send("DELETE", "/documents/generation-100?rev=" + send("GET", "/documents/generation-100")["_rev"])
    send("PUT", "/documents/_local/later", {"seq": 9})
    send("PUT", "/_node/_local/_config/settee/access_log", "false")


def pack(data):
    with gzip.GzipFile(os.path.join(HERE, "data.gz"), "wb", 9, mtime=0) as out:
        for directory, _, files in sorted(os.walk(data)):
            for name in sorted(files):
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, data).encode()
                with open(path, "rb") as file:
                    content = file.read()
                out.write(struct.pack("<I", len(relative)) + relative + struct.pack("<Q", len(content)) + content)


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as home:
        data = os.path.join(home, "data")
        server = start(binary, data)
        fill()
        names = send("GET", "/_all_dbs")
        server.kill()
        server.wait()
        pack(data)
        # Opening the copy changes it.
        copy = shutil.copytree(data, os.path.join(home, "copy"))
        for name in names:
            arguments = ["dump", "--db", name, "--data-dir", copy, "--all-revisions", "--attachments"]
            dumped = subprocess.run([binary] + arguments, check=True, capture_output=True).stdout
            with gzip.GzipFile(os.path.join(HERE, name.replace("/", "_") + ".jsonl.gz"), "wb", 9, mtime=0) as out:
                out.write(dumped)


main()
