"""Goal: `ibmcloudant`, IBM's maintained client, reads and writes documents as with CouchDB 3.5.0.

Method: each of its calls for databases, documents, lists and attachments, against one server, with a new
database for each test.
"""

import base64
import email.parser
import email.policy
import hashlib
import io
import json

from ibmcloudant.cloudant_v1 import AllDocsQuery, Attachment, BulkDocs, BulkGetQueryDocument, DesignDocument, Document

from cloudant import CloudantTest

# Two paths of revisions; the one that begins with b wins.
A, B = "a" * 32, "b" * 32
LOGO = bytes(range(256)) * 4
EXISTS = "file_exists: The database could not be created, the file already exists."
NO_DATABASE = "not_found: Database does not exist."
CONFLICT = "conflict: Document update conflict."
# The client's message for a response without a body.
NO_BODY = "Unknown error"


class Databases(CloudantTest):
    def test_a_database_is_created_once_listed_described_and_destroyed(self):
        name = "life/of-a_db$(1)+"
        made = self.couch.put_database(name)
        self.assertEqual((made.get_status_code(), made.get_result()), (201, {"ok": True}))
        with self.refused(412, EXISTS):
            self.couch.put_database(name)
        self.assertEqual(self.couch.head_database(name).get_status_code(), 200)
        info = self.couch.get_database_information(name).get_result()
        self.assertEqual((info["db_name"], info["doc_count"], info["doc_del_count"]), (name, 0, 0))
        self.assertEqual(info["props"], {})
        self.assertEqual(set(info["sizes"]), {"file", "external", "active"})
        self.assertIn(name, self.couch.get_all_dbs().get_result())
        self.assertEqual(self.couch.delete_database(name).get_result(), {"ok": True})
        for gone in (self.couch.get_database_information, self.couch.delete_database):
            with self.refused(404, NO_DATABASE):
                gone(name)
        with self.refused(404, NO_BODY):
            self.couch.head_database(name)

    def test_an_illegal_database_name_is_refused_with_a_reason(self):
        with self.refused(
            400,
            "illegal_database_name: Name: 'Capital'. Only lowercase characters (a-z), digits (0-9), and any of the "
            "characters _, $, (, ), +, -, and / are allowed. Must begin with a letter.",
        ):
            self.couch.put_database("Capital")

    def test_the_list_of_databases_has_ranges_and_limits(self):
        for name in ("list-c", "list-a", "list-b"):
            self.couch.put_database(name)
        within = {"start_key": '"list-"', "end_key": '"list-z"'}
        self.assertEqual(self.couch.get_all_dbs(**within).get_result(), ["list-a", "list-b", "list-c"])
        self.assertEqual(self.couch.get_all_dbs(**within, skip=1, limit=1).get_result(), ["list-b"])
        down = {"start_key": '"list-z"', "end_key": '"list-"', "descending": True}
        self.assertEqual(self.couch.get_all_dbs(**down).get_result(), ["list-c", "list-b", "list-a"])

    def test_many_databases_are_described_at_once(self):
        db = self.new_database()
        self.put(db, "a")
        known, unknown = self.couch.post_dbs_info(keys=[db, "nowhere"]).get_result()
        self.assertEqual((known["key"], known["info"]["db_name"], known["info"]["doc_count"]), (db, db, 1))
        self.assertEqual(unknown, {"key": "nowhere", "error": "not_found"})

    def test_a_partitioned_database_lists_and_measures_each_partition(self):
        db = self.new_database(partitioned=True)
        self.assertEqual(self.couch.get_database_information(db).get_result()["props"], {"partitioned": True})
        for doc_id in ("north:2", "north:1", "south:1"):
            self.put(db, doc_id, text="x" * 100)
        rows = self.couch.post_partition_all_docs(db, "north").get_result()["rows"]
        self.assertEqual([row["id"] for row in rows], ["north:1", "north:2"])
        info = self.couch.get_partition_information(db, "north").get_result()
        self.assertEqual((info["db_name"], info["partition"], info["doc_count"]), (db, "north", 2))
        self.assertGreater(info["sizes"]["external"], 200)
        with self.refused(400, "illegal_docid: Doc id must be of form partition:id"):
            self.put(db, "nowhere")


class Documents(CloudantTest):
    def test_a_document_is_created_read_updated_and_deleted(self):
        db = self.new_database()
        written = self.couch.put_document(db, "ulm", Document(name="Ulm", visits=1))
        self.assertEqual(written.get_status_code(), 201)
        first = written.get_result()
        self.assertEqual((first["ok"], first["id"]), (True, "ulm"))
        self.assertRegex(first["rev"], r"^1-[0-9a-f]{32}$")
        self.assertEqual(self.get(db, "ulm"), {"_id": "ulm", "_rev": first["rev"], "name": "Ulm", "visits": 1})
        second = self.put(db, "ulm", _rev=first["rev"], name="Ulm", visits=2)
        self.assertRegex(second, r"^2-")
        for stale in ({"rev": first["rev"]}, {"if_match": first["rev"]}, {}):
            with self.refused(409, CONFLICT):
                self.couch.put_document(db, "ulm", Document(name="New Ulm"), **stale)
        with self.refused(409, CONFLICT):
            self.couch.delete_document(db, "ulm", rev=first["rev"])
        # Until a compaction.
        replaced = {"_id": "ulm", "_rev": first["rev"], "name": "Ulm", "visits": 1}
        self.assertEqual(self.get(db, "ulm", rev=first["rev"]), replaced)
        with self.refused(404, "not_found: missing"):
            self.get(db, "ulm", rev="1-" + "0" * 32)
        gone = self.couch.delete_document(db, "ulm", if_match=second).get_result()
        self.assertRegex(gone["rev"], r"^3-")
        with self.refused(404, "not_found: deleted"):
            self.get(db, "ulm")
        with self.refused(404, "not_found: missing"):
            self.get(db, "bern")
        with self.refused(404, NO_DATABASE):
            self.get("nowhere", "ulm")

    def test_a_head_returns_the_revision_and_a_known_document_is_not_sent_again(self):
        db = self.new_database()
        rev = self.put(db, "a")
        self.assertEqual(self.couch.head_document(db, "a").get_headers()["ETag"], f'"{rev}"')
        for call in (self.couch.head_document, self.couch.get_document):
            with self.refused(304, NO_BODY):
                call(db, "a", if_none_match=f'"{rev}"')
        with self.refused(404, NO_BODY):
            self.couch.head_document(db, "b")

    def test_a_document_without_an_id_gets_one(self):
        db = self.new_database()
        written = self.couch.post_document(db, Document(name="Ulm")).get_result()
        self.assertRegex(written["id"], r"^[0-9a-f]{32}$")
        named = self.couch.post_document(db, {"_id": "mine"}).get_result()
        self.assertEqual(named["id"], "mine")
        later = self.couch.post_document(db, {"_id": "later"}, batch="ok")
        self.assertEqual((later.get_status_code(), later.get_result()["id"]), (202, "later"))
        self.until("the document of the batch", lambda: self.couch.post_all_docs(db, key="later").get_result()["rows"])

    def test_ids_may_contain_anything_except_a_leading_underscore(self):
        db = self.new_database()
        for doc_id in ("a/b", "a+b c", "ä€😀", "a?b=c&d#e", "100%", ":", "'\"\\"):
            rev = self.put(db, doc_id, of=doc_id)
            self.assertEqual(self.get(db, doc_id), {"_id": doc_id, "_rev": rev, "of": doc_id})
        with self.refused(
            400, "illegal_docid: Only reserved document ids may start with underscore."
        ):
            self.couch.post_document(db, {"_id": "_mine"})
        with self.refused(400, "bad_request: Document must be a JSON object"):
            self.couch.put_document(db, "a", io.BytesIO(b"[]"))

    def test_conflicts_are_kept_listed_and_resolved(self):
        db = self.new_database()
        self.put_revision(db, "a", A, "1" * 32, side="left")
        self.put_revision(db, "a", B, "1" * 32, side="right")
        winner, loser = f"2-{B}", f"2-{A}"
        self.assertEqual(
            self.get(db, "a", conflicts=True), {"_id": "a", "_rev": winner, "side": "right", "_conflicts": [loser]}
        )
        self.assertEqual(self.get(db, "a", rev=loser)["side"], "left")
        self.couch.delete_document(db, "a", rev=loser)
        found = self.get(db, "a", meta=True)
        self.assertNotIn("_conflicts", found)
        self.assertRegex(found["_deleted_conflicts"][0], r"^3-")
        self.assertEqual([entry["status"] for entry in found["_revs_info"]], ["available", "missing"])

    def test_a_document_is_read_with_its_path_and_its_sequence(self):
        db = self.new_database()
        first = self.put(db, "a", n=1)
        second = self.put(db, "a", n=2, _rev=first)
        found = self.get(db, "a", revs=True, revs_info=True, local_seq=True)
        self.assertEqual(found["_revisions"], {"start": 2, "ids": [second[2:], first[2:]]})
        self.assertEqual(
            found["_revs_info"], [{"rev": second, "status": "available"}, {"rev": first, "status": "available"}]
        )
        self.assertEqual(self.get(db, "a", rev=first)["n"], 1)
        self.assertIn("_local_seq", found)
        self.assertEqual(self.get(db, "a", rev=first, latest=True)["_rev"], second)

    def test_missing_revisions_are_reported_with_their_possible_ancestors(self):
        db = self.new_database()
        self.put_revision(db, "a", A)
        asked = {"a": [f"1-{A}", f"2-{B}"], "b": [f"1-{B}"]}
        self.assertEqual(
            self.couch.post_revs_diff(db, asked).get_result(),
            {"a": {"missing": [f"2-{B}"], "possible_ancestors": [f"1-{A}"]}, "b": {"missing": [f"1-{B}"]}},
        )
        self.assertEqual(self.couch.post_revs_diff(db, {"a": [f"1-{A}"]}).get_result(), {})

    def test_local_documents_are_separate_from_the_others(self):
        db = self.new_database()
        first = self.couch.put_local_document(db, "point", {"at": 1}).get_result()
        self.assertEqual(first, {"ok": True, "id": "_local/point", "rev": "0-1"})
        second = self.couch.put_local_document(db, "point", {"at": 2, "_rev": "0-1"}).get_result()
        self.assertEqual(second["rev"], "0-2")
        self.assertEqual(
            self.couch.get_local_document(db, "point").get_result(), {"_id": "_local/point", "_rev": "0-2", "at": 2}
        )
        self.assertEqual(self.couch.head_local_document(db, "point").get_status_code(), 200)
        self.assertEqual(self.couch.post_all_docs(db).get_result()["rows"], [])
        self.assertEqual(self.couch.post_changes(db).get_result()["results"], [])
        self.assertEqual(self.couch.delete_local_document(db, "point").get_result()["rev"], "0-0")
        with self.refused(404, "not_found: missing"):
            self.couch.get_local_document(db, "point")

    def test_a_document_that_is_too_large_is_refused(self):
        db = self.new_database()
        with self.refused(413, "document_too_large: a"):
            self.put(db, "a", text="x" * 8_000_001)
        self.assertRegex(self.put(db, "a", text="x" * 7_900_000), r"^1-")


class Bulk(CloudantTest):
    def test_documents_are_written_in_bulk_each_with_its_own_result(self):
        db = self.new_database()
        rev = self.put(db, "old", n=1)
        documents = [
            Document(_id="new", n=1),
            {"_id": "old", "_rev": rev, "n": 2},
            {"_id": "old", "n": 3},
            {"_id": "bad", "_rev": f"1-{A}"},
        ]
        answer = self.couch.post_bulk_docs(db, BulkDocs(docs=documents))
        self.assertEqual(answer.get_status_code(), 201)
        new, updated, again, bad = answer.get_result()
        self.assertEqual((new["ok"], new["id"], new["rev"][:2]), (True, "new", "1-"))
        self.assertEqual((updated["ok"], updated["id"], updated["rev"][:2]), (True, "old", "2-"))
        for row, doc_id in ((again, "old"), (bad, "bad")):
            self.assertEqual(row, {"id": doc_id, "error": "conflict", "reason": "Document update conflict."})
        self.assertEqual(self.get(db, "old")["n"], 2)

    def test_a_stream_of_documents_is_accepted_too(self):
        db = self.new_database()
        documents = [{"_id": f"{number:04}", "n": number} for number in range(500)]
        body = io.BytesIO(json.dumps({"docs": documents}).encode())
        rows = self.couch.post_bulk_docs(db, body).get_result()
        self.assertEqual([row["id"] for row in rows], [document["_id"] for document in documents])
        self.assertTrue(all(row["ok"] for row in rows))
        with self.refused(400, "bad_request: POST body must include `docs` parameter."):
            self.couch.post_bulk_docs(db, io.BytesIO(b"{}"))

    def test_documents_are_read_in_bulk_by_revision_too(self):
        db = self.new_database()
        self.put_revision(db, "a", A, "1" * 32, side="left")
        self.put_revision(db, "a", B, "1" * 32, side="right")
        asked = [
            BulkGetQueryDocument(id="a"),
            BulkGetQueryDocument(id="a", rev=f"2-{A}"),
            BulkGetQueryDocument(id="a", rev=f"7-{A}"),
            BulkGetQueryDocument(id="none"),
        ]
        results = self.couch.post_bulk_get(db, asked, revs=True).get_result()["results"]
        self.assertEqual([result["id"] for result in results], ["a", "a", "a", "none"])
        leaves, left, unknown, none = (result["docs"] for result in results)
        self.assertEqual([document["ok"]["side"] for document in leaves], ["right", "left"])
        self.assertEqual(leaves[0]["ok"]["_revisions"], {"start": 2, "ids": [B, "1" * 32]})
        self.assertEqual([document["ok"]["side"] for document in left], ["left"])
        missing = {"error": "not_found", "reason": "missing"}
        self.assertEqual(unknown, [{"error": {"id": "a", "rev": f"7-{A}", **missing}}])
        self.assertEqual(none, [{"error": {"id": "none", "rev": "undefined", **missing}}])

    def test_documents_are_read_in_bulk_as_multipart(self):
        db = self.new_database()
        self.put(db, "a", _attachments={"logo": {"content_type": "image/png", "data": base64.b64encode(LOGO).decode()}})
        self.put(db, "b", n=1)
        asked = [BulkGetQueryDocument(id="a"), BulkGetQueryDocument(id="b"), BulkGetQueryDocument(id="none")]
        for call, kind in (
            (self.couch.post_bulk_get_as_mixed, "multipart/mixed"),
            (self.couch.post_bulk_get_as_related, "multipart/related"),
        ):
            response = call(db, asked, attachments=True).get_result()
            message = parse(response)
            self.assertEqual(message.get_content_type(), kind)
            with_logo, plain, none = message.iter_parts()
            self.assertEqual(with_logo.get_content_type(), "multipart/related")
            document, logo = with_logo.iter_parts()
            self.assertEqual(json.loads(document.get_content())["_attachments"]["logo"]["follows"], True)
            self.assertEqual(logo.get_payload(decode=True), LOGO)
            self.assertEqual(json.loads(content(plain))["n"], 1)
            self.assertEqual(none.get_param("error"), "true")


class Lists(CloudantTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.db = cls.new_database(cls)
        documents = [{"_id": name, "name": name} for name in ("b", "a", "d", "c", "A", "_design/x")]
        cls.couch.post_bulk_docs(cls.db, BulkDocs(docs=documents))
        rev = cls.put(cls, cls.db, "gone")
        cls.deleted = cls.couch.delete_document(cls.db, "gone", rev=rev).get_result()["rev"]

    def ids(self, **options):
        return [row.get("id") for row in self.couch.post_all_docs(self.db, **options).get_result()["rows"]]

    def test_all_documents_are_listed_by_the_bytes_of_their_ids(self):
        answer = self.couch.post_all_docs(self.db, update_seq=True).get_result()
        self.assertEqual((answer["total_rows"], answer["offset"]), (6, 0))
        self.assertIn("update_seq", answer)
        self.assertEqual([row["id"] for row in answer["rows"]], ["A", "_design/x", "a", "b", "c", "d"])
        self.assertEqual(answer["rows"][0]["key"], "A")
        self.assertRegex(answer["rows"][0]["value"]["rev"], r"^1-")

    def test_ranges_limits_and_directions_hold(self):
        self.assertEqual(self.ids(start_key="b", end_key="c"), ["b", "c"])
        self.assertEqual(self.ids(start_key="b", end_key="c", inclusive_end=False), ["b"])
        self.assertEqual(self.ids(start_key="a", skip=1, limit=2), ["b", "c"])
        self.assertEqual(self.ids(descending=True, start_key="c", end_key="a"), ["c", "b", "a"])
        self.assertEqual(self.ids(key="c"), ["c"])
        self.assertEqual(self.ids(limit=0), [])
        self.assertEqual(self.ids(start_key="c", end_key="a"), [])

    def test_keys_are_answered_in_their_order_with_what_is_missing_and_deleted(self):
        asked = ["d", "none", "gone", "a"]
        rows = self.couch.post_all_docs(self.db, keys=asked, include_docs=True).get_result()["rows"]
        self.assertEqual([row["key"] for row in rows], asked)
        self.assertEqual(rows[0]["doc"]["name"], "d")
        self.assertEqual(rows[1], {"key": "none", "error": "not_found"})
        self.assertEqual(
            rows[2], {"id": "gone", "key": "gone", "value": {"rev": self.deleted, "deleted": True}, "doc": None}
        )

    def test_many_lists_are_read_at_once(self):
        asked = [AllDocsQuery(keys=["b"]), AllDocsQuery(start_key="c", limit=1, include_docs=True)]
        first, second = self.couch.post_all_docs_queries(self.db, asked).get_result()["results"]
        self.assertEqual([row["id"] for row in first["rows"]], ["b"])
        self.assertEqual([row["doc"]["name"] for row in second["rows"]], ["c"])

    def test_a_list_is_streamed(self):
        response = self.couch.post_all_docs_as_stream(self.db).get_result()
        answer = json.loads(b"".join(response.iter_content(64)))
        self.assertEqual(len(answer["rows"]), 6)

    def test_design_documents_are_listed_and_read_separately(self):
        rows = self.couch.post_design_docs(self.db).get_result()["rows"]
        self.assertEqual([row["id"] for row in rows], ["_design/x"])
        db = self.new_database()
        written = self.couch.put_design_document(db, "y", DesignDocument(language="javascript", views={})).get_result()
        self.assertEqual(written["id"], "_design/y")
        self.assertEqual(self.couch.get_design_document(db, "y").get_result()["_rev"], written["rev"])
        self.assertEqual(self.couch.head_design_document(db, "y").get_headers()["ETag"], f'"{written["rev"]}"')
        self.assertEqual(self.couch.delete_design_document(db, "y", rev=written["rev"]).get_result()["ok"], True)


class Attachments(CloudantTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # The client compresses bodies and sends Content-Encoding: CouchDB, and so this server, stores such an
        # attachment as compressed. It then has no ranges, and its digest is that of the stored bytes.
        cls.couch.set_enable_gzip_compression(False)

    def test_an_attachment_sent_compressed_is_read_back_unchanged(self):
        db = self.new_database()
        self.couch.set_enable_gzip_compression(True)
        self.addCleanup(self.couch.set_enable_gzip_compression, False)
        for name, sent in (("logo.bin", LOGO), ("noise.bin", hashlib.sha256(b"1").digest() * 10_000)):
            self.couch.put_attachment(db, name, name, io.BytesIO(sent), "application/octet-stream")
            self.assertEqual(self.couch.get_attachment(db, name, name).get_result().content, sent)
            received = self.get(db, name, att_encoding_info=True)["_attachments"][name]
            self.assertEqual((received["length"], received["encoding"]), (len(sent), "gzip"))

    def test_an_attachment_is_written_read_and_deleted_alone(self):
        db = self.new_database()
        kind = "application/octet-stream"
        first = self.couch.put_attachment(db, "a", "logo.bin", io.BytesIO(LOGO), kind).get_result()
        self.assertEqual((first["ok"], first["id"], first["rev"][:2]), (True, "a", "1-"))
        answer = self.couch.get_attachment(db, "a", "logo.bin")
        digest = base64.b64encode(hashlib.md5(LOGO).digest()).decode()
        self.assertEqual(answer.get_result().content, LOGO)
        self.assertEqual(answer.get_headers()["Content-Type"], kind)
        self.assertEqual(answer.get_headers()["Content-MD5"], digest)
        self.assertEqual(answer.get_headers()["ETag"], f'"{digest}"')
        with self.refused(304, NO_BODY):
            self.couch.get_attachment(db, "a", "logo.bin", if_none_match=f'"{digest}"')
        head = self.couch.head_attachment(db, "a", "logo.bin")
        self.assertEqual((head.get_status_code(), head.get_headers()["Content-Length"]), (200, str(len(LOGO))))
        with self.refused(409, CONFLICT):
            self.couch.put_attachment(db, "a", "logo.bin", io.BytesIO(b"no"), "text/plain")
        with self.refused(404, "not_found: Document is missing attachment"):
            self.couch.get_attachment(db, "a", "none")
        with self.refused(409, "not_found: missing_rev"):
            self.couch.delete_attachment(db, "a", "logo.bin", rev=f"1-{A}")
        gone = self.couch.delete_attachment(db, "a", "logo.bin", rev=first["rev"]).get_result()
        self.assertRegex(gone["rev"], r"^2-")
        self.assertNotIn("_attachments", self.get(db, "a"))

    def test_a_range_is_read(self):
        db = self.new_database()
        self.couch.put_attachment(db, "a", "logo.bin", io.BytesIO(LOGO), "application/octet-stream")
        for asked, first, last in (("bytes=2-5", 2, 5), ("bytes=1000-", 1000, 1023), ("bytes=-24", 1000, 1023)):
            answer = self.couch.get_attachment(db, "a", "logo.bin", range=asked)
            self.assertEqual(answer.get_status_code(), 206, asked)
            self.assertEqual(answer.get_headers()["Content-Range"], f"bytes {first}-{last}/1024")
            self.assertEqual(answer.get_result().content, LOGO[first : last + 1])

    def test_text_that_is_stored_compressed_is_read_back_unchanged(self):
        db = self.new_database()
        text = b"to be or not to be, " * 1000
        self.couch.put_attachment(db, "a", "play.txt", io.BytesIO(text), "text/plain")
        self.assertEqual(self.couch.get_attachment(db, "a", "play.txt").get_result().content, text)
        received = self.get(db, "a", att_encoding_info=True)["_attachments"]["play.txt"]
        self.assertEqual((received["length"], received["encoding"]), (len(text), "gzip"))
        self.assertLess(received["encoded_length"], len(text) // 10)

    def test_attachments_are_sent_with_their_document_and_kept_by_stubs(self):
        db = self.new_database()
        attached = {"logo": Attachment(content_type="image/png", data=LOGO)}
        first = self.couch.put_document(db, "a", Document(_attachments=attached)).get_result()["rev"]
        stub = self.get(db, "a")["_attachments"]["logo"]
        digest = "md5-" + base64.b64encode(hashlib.md5(LOGO).digest()).decode()
        self.assertEqual(
            stub, {"content_type": "image/png", "revpos": 1, "digest": digest, "length": len(LOGO), "stub": True}
        )
        self.put(db, "a", _rev=first, more=1, _attachments={"logo": stub})
        found = self.get(db, "a", attachments=True)
        self.assertEqual(base64.b64decode(found["_attachments"]["logo"]["data"]), LOGO)
        self.assertEqual((found["more"], found["_attachments"]["logo"]["revpos"]), (1, 1))
        with self.refused(412, "missing_stub: Invalid attachment stub in b for logo"):
            self.put(db, "b", _attachments={"logo": stub})

    def test_a_document_is_read_with_its_attachments_as_multipart(self):
        db = self.new_database()
        attached = {
            "a.bin": Attachment(content_type="image/png", data=LOGO),
            "b.txt": Attachment(content_type="text/plain", data=b"be"),
        }
        self.couch.put_document(db, "a", Document(_attachments=attached))
        message = parse(self.couch.get_document_as_related(db, "a", attachments=True).get_result())
        self.assertEqual(message.get_content_type(), "multipart/related")
        document, logo, text = message.iter_parts()
        members = json.loads(content(document))["_attachments"]
        self.assertEqual({name: member["follows"] for name, member in members.items()}, {"a.bin": True, "b.txt": True})
        self.assertEqual((logo.get_filename(), logo.get_content_type()), ("a.bin", "image/png"))
        self.assertEqual(logo.get_payload(decode=True), LOGO)
        self.assertEqual((text.get_filename(), text.get_content_type()), ("b.txt", "text/plain"))


def parse(response):
    """The parts of a multipart response."""
    head = f"Content-Type: {response.headers['Content-Type']}\r\n\r\n".encode()
    return email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + response.content)


def content(part):
    """The bytes of a part, text or not."""
    return part.get_payload(decode=True)
