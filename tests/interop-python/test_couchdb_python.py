"""Goal: `couchdb`, Python's oldest client that is still used, works as with CouchDB 3.5.0.

Method: its interface, part by part, against one server, with a new database for each test. Unlike other
clients it caches responses by their ETag and sends `If-None-Match`, reads continuous feeds chunk by chunk, and
maps errors to classes.
"""

import io

import couchdb
from couchdb.design import ViewDefinition

from settee import ServerTest

A, B = "a" * 32, "b" * 32
CONFLICT = ("conflict", "Document update conflict.")
NO_DATABASE = ("not_found", "Database does not exist.")


class CouchdbPython(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.couch = couchdb.Server(cls.server.url)

    def new_database(self):
        return self.couch.create(self.new_name())

    def new_numbers(self):
        """Returns a database of 50 numbers and views of them."""
        db = self.new_database()
        db.update([{"_id": f"{number:03}", "n": number, "tens": number // 10} for number in range(50)])
        by_n = ViewDefinition("d", "by_n", "function (doc) { emit(doc.n, doc.tens); }")
        by_tens = ViewDefinition("d", "by_tens", "function (doc) { emit(doc.tens, doc.n); }", "_sum")
        ViewDefinition.sync_many(db, [by_n, by_tens])
        return db

    def raises(self, kind, message, call, *arguments, **options):
        """Checks the class and the message with which a call is refused."""
        with self.assertRaises(kind) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.args[0], message)

    def test_databases_are_members_of_the_server(self):
        name = self.new_name()
        self.assertNotIn(name, self.couch)
        db = self.couch.create(name)
        self.raises(
            couchdb.PreconditionFailed,
            ("file_exists", "The database could not be created, the file already exists."),
            self.couch.create,
            name,
        )
        self.assertIn(name, self.couch)
        self.assertIn(name, list(self.couch))
        self.assertEqual((db.name, db.info()["db_name"], len(db), bool(db)), (name, name, 0, True))
        del self.couch[name]
        self.assertNotIn(name, self.couch)
        self.raises(couchdb.ResourceNotFound, "", self.couch.__getitem__, name)
        self.raises(couchdb.ResourceNotFound, NO_DATABASE, self.couch.delete, name)

    def test_the_server_returns_its_version_identifiers_and_tasks(self):
        self.assertEqual(self.couch.version_info()[:2], (3, 5))
        self.assertEqual(len(set(self.couch.uuids(20))), 20)
        self.assertEqual(self.couch.tasks(), [])
        self.assertTrue(self.couch)

    def test_documents_are_members_of_a_database(self):
        db = self.new_database()
        db["ulm"] = {"name": "Ulm"}
        doc = db["ulm"]
        self.assertEqual((doc.id, doc["name"], doc.rev[:2]), ("ulm", "Ulm", "1-"))
        self.assertIn("ulm", db)
        self.assertEqual(list(db), ["ulm"])
        doc["visits"] = 2
        db["ulm"] = doc
        self.assertRegex(doc.rev, r"^2-")
        self.assertEqual(db["ulm"]["visits"], 2)
        stale = dict(doc, _rev=f"1-{A}")
        self.raises(couchdb.ResourceConflict, CONFLICT, db.save, stale)
        self.raises(couchdb.ResourceConflict, CONFLICT, db.delete, stale)
        # Also of a replaced revision, whose body can be read until a compaction.
        self.assertEqual([revision["_rev"][:2] for revision in db.revisions("ulm")], ["2-", "1-"])
        del db["ulm"]
        self.assertNotIn("ulm", db)
        self.assertIsNone(db.get("ulm"))
        self.raises(couchdb.ResourceNotFound, ("not_found", "deleted"), db.__getitem__, "ulm")
        no_object = (400, ("bad_request", "Document must be a JSON object"))
        self.raises(couchdb.ServerError, no_object, db.resource.put_json, "a", [])

    def test_ids_with_slashes_and_letters_of_all_scripts_are_accepted(self):
        db = self.new_database()
        for doc_id in ("a/b c+d", "äöü€", "_design/x", "_local/y"):
            db[doc_id] = {"of": doc_id}
            self.assertEqual((db[doc_id].id, db[doc_id]["of"]), (doc_id, doc_id))

    def test_a_cached_response_is_not_modified_until_it_changes(self):
        db = self.new_database()
        db["a"] = {"n": 1}
        self.assertEqual([db["a"]["n"], db["a"]["n"]], [1, 1])
        kept = [url for url in db.resource.session.cache.by_url if url.endswith(f"/{db.name}/a")]
        self.assertEqual(len(kept), 1)
        status, _, _ = db.resource.get("a", headers={"If-None-Match": f'"{db["a"].rev}"'})
        self.assertEqual(status, 200)
        db["a"] = dict(db["a"], n=2)
        self.assertEqual(db["a"]["n"], 2)

    def test_a_copy_replaces_the_named_revision(self):
        db = self.new_database()
        db["a"] = {"n": 1}
        db["b"] = {"n": 2}
        self.assertRegex(db.copy("a", "new/one"), r"^1-")
        self.assertEqual(db["new/one"]["n"], 1)
        self.raises(couchdb.ResourceConflict, CONFLICT, db.copy, "a", "b")
        self.assertRegex(db.copy(db["a"], db["b"]), r"^2-")
        self.assertEqual(db["b"]["n"], 1)

    def test_bulk_updates_report_each_failure_and_its_kind(self):
        db = self.new_database()
        db["old"] = {"n": 1}
        rows = db.update([{"_id": "new"}, {"_id": "old", "n": 2}])
        self.assertEqual([(ok, doc_id) for ok, doc_id, _ in rows], [(True, "new"), (False, "old")])
        self.assertIsInstance(rows[1][2], couchdb.ResourceConflict)
        rows = db.update([{"_id": "old", "_rev": f"1-{B}", "n": 3}], new_edits=False)
        self.assertEqual(rows, [])
        self.assertEqual(len(db.get("old", conflicts=True)["_conflicts"]), 1)

    def test_lists_are_sliced_and_paged(self):
        db = self.new_database()
        db.update([{"_id": f"{number:03}", "n": number} for number in range(50)])
        rows = db.view("_all_docs")
        self.assertEqual((rows.total_rows, rows.offset, len(rows)), (50, 0, 50))
        self.assertEqual([row.id for row in rows["010":"012"]], ["010", "011", "012"])
        self.assertEqual([row.id for row in rows["020"]], ["020"])
        keyed = db.view("_all_docs", keys=["003", "none"], include_docs=True).rows
        self.assertEqual([(row.id, row.error) for row in keyed], [("003", None), (None, "not_found")])
        self.assertEqual(keyed[0].doc["n"], 3)
        paged = [row.id for row in db.iterview("_all_docs", 7)]
        self.assertEqual(paged, [f"{number:03}" for number in range(50)])

    def test_views_are_stored_queried_sliced_and_paged(self):
        db = self.new_numbers()
        rows = db.view("d/by_n")
        self.assertEqual((rows.total_rows, rows.offset, len(rows)), (50, 0, 50))
        self.assertEqual([(row.id, row.key, row.value) for row in rows[48:]], [("048", 48, 4), ("049", 49, 4)])
        self.assertEqual([row.id for row in db.view("d/by_n")[7]], ["007"])
        self.assertEqual(db.view("d/by_n", startkey=10, endkey=12).offset, 10)
        self.assertEqual([row.doc["n"] for row in db.view("d/by_n", keys=[3, 99, 1], include_docs=True)], [3, 1])
        self.assertEqual([row.key for row in db.view("d/by_n", descending=True, limit=2, skip=1)], [48, 47])
        for options in ({}, {"descending": True}, {"limit": 20}, {"startkey": 30}):
            paged = [row.id for row in db.iterview("d/by_n", 7, **options)]
            self.assertEqual(paged, [row.id for row in db.view("d/by_n", **options)], options)
        by_tens = [row.id for row in db.iterview("d/by_tens", 3, reduce=False)]
        self.assertEqual(by_tens, [f"{number:03}" for number in range(50)])
        self.assertEqual([row.value for row in db.view("d/by_tens")], [sum(range(50))])
        groups = db.view("d/by_tens", group=True, startkey=3)
        self.assertEqual([(row.key, row.value) for row in groups], [(3, sum(range(30, 40))), (4, sum(range(40, 50)))])
        wrapped = db.view("d/by_n", wrapper=lambda row: row["key"] * 2, limit=2)
        self.assertEqual(list(wrapped), [0, 2])
        not_found = ("not_found", "missing_named_view")
        self.raises(couchdb.ResourceNotFound, not_found, lambda: db.view("d/none").rows)
        self.raises(
            couchdb.ServerError,
            (410, ("gone", "Temporary views are not supported in CouchDB")),
            lambda: db.query("function (doc) { emit(doc._id); }").rows,
        )

    def test_changed_and_removed_view_definitions_take_effect(self):
        db = self.new_numbers()
        self.assertEqual(len(db.view("d/by_n").rows), 50)
        changed = ViewDefinition("d", "by_n", "function (doc) { if (doc.n < 3) emit(doc.n); }")
        ViewDefinition.sync_many(db, [changed], remove_missing=True)
        self.assertEqual([row.key for row in changed(db)], [0, 1, 2])
        self.raises(couchdb.ResourceNotFound, ("not_found", "missing_named_view"), lambda: db.view("d/by_tens").rows)
        self.assertEqual((db.cleanup(), db.compact("d")), (True, True))
        self.assertEqual([row.key for row in changed(db)], [0, 1, 2])

    def test_show_list_and_update_functions_are_called(self):
        db = self.new_numbers()
        design = db["_design/d"]
        design["shows"] = {"n": "function (doc, req) { return 'n ' + (doc ? doc.n : req.query.other); }"}
        design["lists"] = {
            # The client reads a list without a type of its own as JSON.
            "keys": """function (head) {
                start({ headers: { "Content-Type": "text/plain" } });
                send(head.offset + ":");
                for (var row; (row = getRow()); ) send(" " + row.key);
            }"""
        }
        design["updates"] = {
            "add": """function (doc, req) {
                if (!doc) return [{ _id: req.id || req.uuid, n: Number(req.query.by) }, "made"];
                doc.n += Number(req.query.by);
                return [doc, { body: String(doc.n), headers: { "Content-Type": "text/plain" } }];
            }"""
        }
        db.save(design)
        headers, body = db.show("d/n", "007")
        self.assertEqual((headers["Content-Type"], body.read()), ("text/html; charset=utf-8", b"n 7"))
        self.assertEqual(db.show("d/n", other="x")[1].read(), b"n x")
        self.assertEqual(db.list("d/keys", "d/by_n", startkey=47)[1].read(), b"47: 47 48 49")
        self.assertEqual(db.list("d/keys", "d/by_n", keys=[5, 3])[1].read(), b"5: 5 3")
        headers, body = db.update_doc("d/add", "007", by=3)
        self.assertEqual((headers["Content-Type"], body.read()), ("text/plain", b"10"))
        self.assertEqual((db["007"]["n"], headers["X-Couch-Update-NewRev"]), (10, db["007"].rev))
        headers, body = db.update_doc("d/add", by=5)
        self.assertEqual((db[headers["X-Couch-Id"]]["n"], body.read()), (5, b"made"))

    def test_documents_are_found_by_selectors_and_indexes(self):
        db = self.new_numbers()
        indexes = db.index()
        indexes["i", "by-n"] = [{"n": "asc"}]
        named = [(index["ddoc"], index["name"]) for index in indexes]
        self.assertEqual(named, [(None, "_all_docs"), ("_design/i", "by-n")])
        query = {"selector": {"n": {"$gte": 40}, "tens": 4}, "sort": [{"n": "desc"}], "limit": 3}
        self.assertEqual([doc.id for doc in db.find(query)], ["049", "048", "047"])
        self.assertEqual(db.explain(query)["index"]["name"], "by-n")
        del indexes["i", "by-n"]
        self.assertEqual(len(list(indexes)), 1)
        self.raises(couchdb.ResourceNotFound, ("not_found", "missing"), indexes.__delitem__, ("i", "by-n"))
        no_index = (400, ("no_usable_index", "No index exists for this sort, try indexing by the sort fields."))
        self.raises(couchdb.ServerError, no_index, db.find, query)

    def test_a_validation_and_a_filter_are_honoured(self):
        db = self.new_database()
        db["_design/d"] = {
            "validate_doc_update": "function (doc) { if (doc.n < 0) throw { forbidden: 'Too small.' }; }",
            "filters": {"even": "function (doc, req) { return doc.n % req.query.by === 0; }"},
        }
        rows = db.update([{"_id": f"{number}", "n": number} for number in (-1, 0, 1, 2, 3)])
        self.assertEqual([ok for ok, _, _ in rows], [False, True, True, True, True])
        self.raises(couchdb.http.Forbidden, ("forbidden", "Too small."), db.save, {"_id": "x", "n": -1})
        self.assertEqual([row["id"] for row in db.changes(filter="d/even", by=2)["results"]], ["0", "2"])

    def test_small_and_large_attachments_are_read_back(self):
        db = self.new_database()
        doc = {"_id": "a"}
        db.save(doc)
        large = bytes(range(256)) * 1000
        for name, sent, content_type in (
            ("small.txt", b"hello", None),
            ("large.bin", io.BytesIO(large), "application/octet-stream"),
            ("empty", b"", "application/octet-stream"),
        ):
            db.put_attachment(doc, sent, name, content_type)
        self.assertEqual(db.get_attachment("a", "small.txt").read(), b"hello")
        self.assertEqual(db.get_attachment(doc, "large.bin").read(), large)
        stubs = db["a"]["_attachments"]
        lengths = {name: stub["length"] for name, stub in stubs.items()}
        self.assertEqual(lengths, {"small.txt": 5, "large.bin": 256_000, "empty": 0})
        self.assertEqual(stubs["small.txt"]["content_type"], "text/plain")
        db.delete_attachment(doc, "small.txt")
        self.assertIsNone(db.get_attachment(doc, "small.txt"))
        stale = {"_id": "a", "_rev": f"1-{A}"}
        self.raises(couchdb.ResourceConflict, ("not_found", "missing_rev"), db.put_attachment, stale, b"no", "no.txt")

    def test_changes_are_listed_filtered_and_followed(self):
        db = self.new_database()
        db.update([{"_id": name, "name": name} for name in "abc"])
        listed = db.changes(limit=2)
        self.assertEqual([row["id"] for row in listed["results"]], ["a", "b"])
        self.assertEqual([row["id"] for row in db.changes(since=listed["last_seq"])["results"]], ["c"])
        chosen = db.changes(filter="_selector", _selector={"selector": {"name": "b"}})
        self.assertEqual([row["id"] for row in chosen["results"]], ["b"])
        feed = db.changes(feed="continuous", timeout=1000)
        self.assertEqual([next(feed)["id"] for _ in range(3)], ["a", "b", "c"])
        db["d"] = {}
        self.assertEqual(next(feed)["id"], "d")
        self.assertIn("last_seq", next(feed))
        self.assertEqual(list(feed), [])

    def test_purged_revisions_leave_nothing(self):
        db = self.new_database()
        doc = {"_id": "a"}
        db.save(doc)
        self.assertEqual(db.purge([doc]), {"purge_seq": None, "purged": {"a": [doc["_rev"]]}})
        self.raises(couchdb.ResourceNotFound, ("not_found", "missing"), db.__getitem__, "a")
        self.assertEqual((len(db), db.changes()["results"]), (0, []))

    def test_revisions_beyond_the_limit_are_pruned(self):
        db = self.new_database()
        self.assertEqual(db.resource.get_json("_revs_limit")[2], 1000)
        self.assertEqual(db.resource.put_json("_revs_limit", body=3)[2], {"ok": True})
        doc = {"_id": "a"}
        for _ in range(6):
            db.save(doc)
        path = db.get("a", revs=True)["_revisions"]
        self.assertEqual((path["start"], len(path["ids"])), (6, 3))

    def test_a_database_is_compacted_cleaned_and_committed(self):
        db = self.new_database()
        self.assertEqual((db.compact(), db.cleanup()), (True, True))
        self.assertEqual(db.commit()["ok"], True)


class Logins(ServerTest):
    arguments = ("--admin", "ann:secret word")

    def test_the_password_in_the_address_is_accepted_and_without_it_access_is_refused(self):
        ann = couchdb.Server(self.server.url.replace("//", "//ann:secret%20word@"))
        self.assertEqual(ann.create("vault").info()["doc_count"], 0)
        nobody = couchdb.Server(self.server.url)
        with self.assertRaises(couchdb.Unauthorized) as caught:
            nobody.create("mine")
        self.assertEqual(caught.exception.args[0], ("unauthorized", "You are not a server admin."))

    def test_a_session_is_opened_and_ended_by_its_token(self):
        # The client's own `login` takes the first header of a response for the cookie, which CouchDB 3 doesn't
        # send first; this reads the token as `login` would.
        couch = couchdb.Server(self.server.url)
        _, headers, answer = couch.resource.post_json("_session", {"name": "ann", "password": "secret word"})
        self.assertEqual(answer.get("name"), "ann")
        token = headers["Set-Cookie"].split(";")[0].removeprefix("AuthSession=")
        self.assertTrue(couch.verify_token(token))
        self.assertTrue(couch.logout(token))
        with self.assertRaises(couchdb.Unauthorized):
            couch.login("ann", "wrong")
