"""Goal: `pycouchdb` works as with CouchDB 3.5.0.

Method: its interface, part by part, against one server, with a new database for each test. The client reads
the content type of every response, also of those to HEAD, and finds errors in responses with 201.
"""

import io

import pycouchdb
from pycouchdb import exceptions
from pycouchdb.feedreader import BaseFeedReader

from settee import ServerTest


class Reader(BaseFeedReader):
    """Reads `count` lines of a feed, then closes it; calls `act` with each."""

    def __init__(self, count, act=lambda line: None):
        self.lines, self.count, self.act, self.closed = [], count, act, False

    def on_message(self, message):
        self.lines.append(message)
        self.act(message)
        if len(self.lines) == self.count:
            raise exceptions.FeedReaderExited()

    def on_close(self):
        self.closed = True


class Pycouchdb(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.couch = pycouchdb.Server(cls.server.url + "/")

    def new_database(self):
        return self.couch.create(self.new_name())

    def test_databases_are_created_found_and_removed(self):
        name = self.new_name()
        db = self.couch.create(name)
        with self.assertRaises(exceptions.Conflict):
            self.couch.create(name)
        self.assertIn(name, self.couch)
        self.assertIn(name, list(self.couch))
        self.assertEqual((db.config()["db_name"], len(db)), (name, 0))
        self.assertRegex(self.couch.version(), r"^3\.5\.")
        self.couch.delete(name)
        self.assertNotIn(name, self.couch)
        for call in (self.couch.database, self.couch.delete):
            with self.assertRaises(exceptions.NotFound):
                call(name)
        with self.assertRaises(exceptions.GenericError) as caught:
            self.couch.create("Capital")
        self.assertEqual(caught.exception.args[0]["error"], "illegal_database_name")

    def test_documents_are_saved_read_and_deleted(self):
        db = self.new_database()
        doc = db.save({"_id": "ulm", "name": "Ulm"})
        self.assertRegex(doc["_rev"], r"^1-")
        newer = db.save(dict(doc, visits=2))
        with self.assertRaisesRegex(exceptions.Conflict, "^Document update conflict.$"):
            db.save(doc)
        self.assertEqual(db.get("ulm"), {"_id": "ulm", "_rev": newer["_rev"], "name": "Ulm", "visits": 2})
        # Also of a replaced revision, whose body can be read until a compaction.
        self.assertEqual([revision["_rev"][:2] for revision in db.revisions("ulm")], ["2-", "1-"])
        self.assertIn("ulm", db)
        with self.assertRaises(exceptions.Conflict):
            db.delete(doc)
        db.delete("ulm")
        self.assertNotIn("ulm", db)
        with self.assertRaisesRegex(exceptions.NotFound, "^deleted$"):
            db.get("ulm")
        self.assertIn("_id", db.save({"name": "later"}, batch=True))

    def test_bulks_are_saved_deleted_and_refused(self):
        db = self.new_database()
        docs = db.save_bulk([{"_id": f"{number}", "n": number} for number in range(5)])
        self.assertEqual([row["id"] for row in db.all(as_list=True)], list("01234"))
        self.assertEqual([row["doc"]["n"] for row in db.all(startkey="1", endkey="3")], [1, 2, 3])
        self.assertEqual([row["id"] for row in db.all(keys=["4", "0"])], ["4", "0"])
        with self.assertRaises(exceptions.Conflict):
            db.save_bulk([{"_id": "0"}])
        self.assertEqual(len(db.delete_bulk(docs[:2])), 2)
        with self.assertRaises(exceptions.Conflict):
            db.delete_bulk([dict(docs[4], _rev=f"1-{'a' * 32}")])
        self.assertEqual(len(db), 3)

    def test_views_are_queried_and_paged(self):
        db = self.new_database()
        db.save_bulk([{"_id": f"{number:02}", "n": number, "tens": number // 10} for number in range(30)])
        views = {
            "by_n": {"map": "function (doc) { emit(doc.n, null); }"},
            "by_tens": {"map": "function (doc) { emit(doc.tens, doc.n); }", "reduce": "_sum"},
        }
        db.save({"_id": "_design/d", "views": views})
        self.assertEqual([row["key"] for row in db.query("d/by_n", startkey=3, endkey=5)], [3, 4, 5])
        self.assertEqual(db.query("d/by_n", keys=[9, 99, 2], flat="id", as_list=True), ["09", "02"])
        self.assertEqual(db.one("d/by_n", descending=True, flat="key"), 29)
        self.assertIsNone(db.one("d/by_n", key="none"))
        self.assertEqual(db.one("d/by_tens", flat="value"), sum(range(30)))
        self.assertEqual(db.query("d/by_tens", group=True, flat="value", as_list=True), [45, 145, 245])
        self.assertEqual(db.query("d/by_n", pagesize=4, flat="key", as_list=True), list(range(30)))
        pages = list(db.view_pages("d/by_tens", 7, {"reduce": "false"}))
        self.assertEqual([len(page) for page in pages], [7, 7, 7, 7, 2])
        self.assertEqual([row["value"] for page in pages for row in page], list(range(30)))
        self.assertEqual(db.compact_view("d"), {"ok": True})
        with self.assertRaisesRegex(exceptions.NotFound, "^missing_named_view$"):
            db.query("d/none", as_list=True)

    def test_documents_are_found_and_paged(self):
        db = self.new_database()
        db.save_bulk([{"_id": f"{number:02}", "n": number} for number in range(30)])
        self.assertEqual([doc["n"] for doc in db.find({"n": {"$lt": 3}})], [0, 1, 2])
        self.assertEqual(list(db.find({"n": {"$lt": 3}}, fields=["n"], skip=2)), [{"n": 2}])
        pages = list(db.mango_pages({"n": {"$gte": 10}}, 8))
        self.assertEqual([doc["n"] for page in pages for doc in page], list(range(10, 30)))
        with self.assertRaises(exceptions.GenericError) as caught:
            list(db.find({"n": {"$no": 3}}))
        refused = {"error": "invalid_operator", "reason": "Invalid operator: $no"}
        self.assertEqual(caught.exception.args[0], refused)

    def test_writes_that_validation_refuses_raise(self):
        db = self.new_database()
        validate = "function (doc) { if (doc.n < 0) throw { forbidden: 'Too small.' }; }"
        db.save({"_id": "_design/d", "validate_doc_update": validate})
        with self.assertRaises(exceptions.GenericError) as caught:
            db.save({"_id": "a", "n": -1})
        self.assertEqual(caught.exception.args[0], {"error": "forbidden", "reason": "Too small."})
        self.assertNotIn("a", db)

    def test_attachments_are_read_back_whole_and_streamed(self):
        db = self.new_database()
        large = bytes(range(256)) * 1000
        doc = db.put_attachment(db.save({"_id": "a"}), io.BytesIO(large), "large.bin", "application/octet-stream")
        doc = db.put_attachment(doc, b"hello", "small.txt")
        self.assertEqual(db.get_attachment(doc, "small.txt"), b"hello")
        streamed = db.get_attachment(doc, "large.bin", stream=True)
        self.assertEqual(b"".join(streamed.iter_content(chunk_size=1000)), large)
        doc = db.delete_attachment(doc, "small.txt")
        self.assertEqual(list(db.get("a")["_attachments"]), ["large.bin"])
        with self.assertRaises(exceptions.NotFound):
            db.get_attachment(doc, "small.txt")

    def test_changes_are_listed_and_followed(self):
        db = self.new_database()
        db.save_bulk([{"_id": name} for name in "abc"])
        last_seq, results = db.changes_list(limit=2)
        self.assertEqual([row["id"] for row in results], ["a", "b"])
        self.assertEqual([row["id"] for row in db.changes_list(since=last_seq)[1]], ["c"])
        reader = Reader(4, lambda line: line["id"] == "c" and db.save({"_id": "d"}))
        db.changes_feed(reader, timeout=30_000)
        self.assertEqual([line["id"] for line in reader.lines], list("abcd"))
        self.assertTrue(reader.closed)
        chosen = Reader(2)
        db.changes_feed(chosen, feed="continuous", filter="_doc_ids", data={"doc_ids": ["b", "d"]}, timeout=30_000)
        self.assertEqual([line["id"] for line in chosen.lines], ["b", "d"])

    def test_database_updates_are_followed(self):
        # The client uses POST, which CouchDB refuses.
        with self.assertRaises(exceptions.GenericError) as caught:
            self.couch.changes_feed(Reader(1))
        self.assertEqual(caught.exception.args[0], {"error": "method_not_allowed", "reason": "Only GET allowed"})

    def test_a_database_is_compacted_cleaned_and_committed(self):
        db = self.new_database()
        for call in (db.compact, db.cleanup, db.commit):
            self.assertEqual(call()["ok"], True)


class Logins(ServerTest):
    arguments = ("--admin", "ann:secret")

    def test_a_session_or_a_password_is_accepted(self):
        address = self.server.url.replace("//", "//ann:secret@") + "/"
        for method in ("session", "basic"):
            self.assertEqual(list(pycouchdb.Server(address, authmethod=method)), [])
        with self.assertRaises(exceptions.AuthenticationFailed):
            pycouchdb.Server(address.replace("secret", "wrong"), authmethod="session")
        with self.assertRaises(exceptions.GenericError) as caught:
            list(pycouchdb.Server(address.replace("secret", "wrong"), authmethod="basic"))
        self.assertEqual(caught.exception.args[0]["error"], "unauthorized")
