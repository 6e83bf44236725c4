"""Goal: `ibmcloudant` follows changes as in CouchDB 3.5.0, its changes follower included.

Method: every feed, filter and option that the client has, against one server, with a new database for each
test. A feed that waits for a change is started before the change is made.
"""

import json
import threading
from unittest import mock

from ibmcloudant.cloudant_v1 import BulkDocs
from ibmcloudant.features import changes_follower
from ibmcloudant.features.changes_follower import ChangesFollower

from cloudant import CloudantTest, client
from settee import WAIT_S_MAX

A, B = "a" * 32, "b" * 32


class Feeds(CloudantTest):
    def changes(self, db, **options):
        return self.couch.post_changes(db, **options).get_result()

    def ids(self, db, **options):
        return [row["id"] for row in self.changes(db, **options)["results"]]

    def filled(self, *names):
        db = self.new_database()
        for name in names:
            self.put(db, name, name=name)
        return db

    def test_changes_are_listed_once_each_in_order_and_from_a_position(self):
        db = self.filled("a", "b", "c")
        rev = self.put(db, "a", _rev=self.get(db, "a")["_rev"])
        everything = self.changes(db)
        self.assertEqual([row["id"] for row in everything["results"]], ["b", "c", "a"])
        self.assertEqual(everything["results"][2]["changes"], [{"rev": rev}])
        self.assertEqual((everything["pending"], everything["last_seq"]), (0, everything["results"][2]["seq"]))
        part = self.changes(db, limit=1)
        self.assertEqual(([row["id"] for row in part["results"]], part["pending"]), (["b"], 2))
        self.assertEqual(self.ids(db, since=part["last_seq"]), ["c", "a"])
        self.assertEqual(self.ids(db, since="now"), [])
        self.assertEqual(self.ids(db, descending=True), ["a", "c", "b"])

    def test_deletions_documents_and_conflicts_are_listed(self):
        db = self.filled("a")
        self.put_revision(db, "b", A, side="left")
        self.put_revision(db, "b", B, side="right")
        gone = self.couch.delete_document(db, "a", rev=self.get(db, "a")["_rev"]).get_result()["rev"]
        received = {row["id"]: row for row in self.changes(db, include_docs=True, conflicts=True)["results"]}
        self.assertEqual(received["a"]["deleted"], True)
        self.assertEqual(received["a"]["doc"], {"_id": "a", "_rev": gone, "_deleted": True})
        self.assertEqual(received["b"]["changes"], [{"rev": f"1-{B}"}])
        self.assertEqual(received["b"]["doc"]["_conflicts"], [f"1-{A}"])
        received = {row["id"]: row for row in self.changes(db, style="all_docs")["results"]}
        self.assertEqual(received["b"]["changes"], [{"rev": f"1-{B}"}, {"rev": f"1-{A}"}])

    def test_filters_select_by_id_by_selector_and_design_documents(self):
        db = self.filled("a", "b", "c")
        self.put(db, "d", name="b", n=[1, 2])
        self.couch.put_design_document(db, "x", {"language": "javascript"})
        self.assertEqual(self.ids(db, filter="_doc_ids", doc_ids=["c", "a", "none"]), ["a", "c"])
        self.assertEqual(self.ids(db, filter="_selector", selector={"name": "b"}), ["b", "d"])
        self.assertEqual(self.ids(db, filter="_selector", selector={"n": {"$elemMatch": {"$gt": 1}}}), ["d"])
        self.assertEqual(self.ids(db, filter="_design"), ["_design/x"])
        asked = {"selector": {"n": {"$exists": True}}, "fields": ["_id", "n"], "include_docs": True}
        chosen = self.changes(db, filter="_selector", **asked)
        self.assertEqual([row["doc"] for row in chosen["results"]], [{"_id": "d", "n": [1, 2]}])
        with self.refused(400, "bad_request: Selector error: expected a JSON object"):
            self.ids(db, filter="_selector")

    def test_a_longpoll_waits_for_a_change_and_ends_with_it(self):
        db = self.filled("a")
        since = self.changes(db)["last_seq"]
        received = []

        def wait():
            received.append(client(self.server.url).post_changes(db, feed="longpoll", since=since).get_result())

        waiting = threading.Thread(target=wait)
        waiting.start()
        rev = self.put(db, "b")
        waiting.join(WAIT_S_MAX)
        self.assertEqual([(row["id"], row["changes"]) for row in received[0]["results"]], [("b", [{"rev": rev}])])
        empty = self.changes(db, feed="longpoll", since=received[0]["last_seq"], timeout=50)
        self.assertEqual((empty["results"], empty["last_seq"]), ([], received[0]["last_seq"]))

    def test_a_continuous_feed_sends_a_line_for_each_change_until_its_timeout(self):
        db = self.filled("a")
        stream = self.couch.post_changes_as_stream(db, feed="continuous", timeout=1000, include_docs=True).get_result()
        lines = (json.loads(line) for line in stream.iter_lines(chunk_size=1) if line)
        self.assertEqual(next(lines)["id"], "a")
        self.put(db, "b", n=7)
        received = next(lines)
        self.assertEqual((received["id"], received["doc"]["n"]), ("b", 7))
        end = next(lines)
        self.assertEqual((end["last_seq"], end["pending"]), (received["seq"], 0))
        self.assertEqual(list(lines), [])

    def test_a_feed_that_waits_sends_heartbeats(self):
        db = self.new_database()
        stream = self.couch.post_changes_as_stream(db, feed="continuous", heartbeat=20).get_result()
        self.addCleanup(stream.close)
        beats = stream.iter_lines(chunk_size=1)
        self.assertEqual([next(beats), next(beats)], [b"", b""])


class Followers(CloudantTest):
    def filled(self, count):
        db = self.new_database()
        documents = [{"_id": f"{number:03}", "n": number} for number in range(count)]
        self.couch.post_bulk_docs(db, BulkDocs(docs=documents))
        return db, [document["_id"] for document in documents]

    def test_one_off_follows_batch_after_batch_to_the_end(self):
        db, ids = self.filled(95)
        with mock.patch.object(changes_follower, "_BATCH_SIZE", 10):
            follower = ChangesFollower(self.couch, db=db)
            received = list(follower.start_one_off())
        self.assertEqual([item.id for item in received], ids)
        again = ChangesFollower(self.couch, db=db, since=received[49].seq)
        self.assertEqual([item.id for item in again.start_one_off()], ids[50:])
        limited = ChangesFollower(self.couch, db=db, limit=7)
        self.assertEqual([item.id for item in limited.start_one_off()], ids[:7])

    def test_documents_are_included_in_batches_by_their_size(self):
        db, ids = self.filled(30)
        follower = ChangesFollower(self.couch, db=db, include_docs=True)
        self.assertEqual([(item.id, item.doc.n) for item in follower.start_one_off()], list(zip(ids, range(30))))

    def test_a_selector_filters_the_followed_changes(self):
        db, ids = self.filled(30)
        follower = ChangesFollower(self.couch, db=db, filter="_selector", selector={"n": {"$gte": 25}})
        received = [item.id for item in follower.start_one_off()]
        self.assertEqual(received, ids[25:])
        last = self.couch.post_changes(db).get_result()["last_seq"]
        self.assertEqual(self.couch.post_changes(db, since=last).get_result()["results"], [])

    def test_a_listener_gets_every_change_until_it_stops(self):
        db, ids = self.filled(5)
        follower = ChangesFollower(client(self.server.url), db=db, since="0")
        received, seen = [], threading.Semaphore(0)

        def listen():
            for item in follower.start():
                received.append(item.id)
                seen.release()

        listener = threading.Thread(target=listen)
        listener.start()
        for number in range(5, 15):
            ids.append(f"{number:03}")
            self.put(db, ids[-1])
        for _ in ids:
            self.assertTrue(seen.acquire(timeout=WAIT_S_MAX), received)
        # `stop` waits for the longpoll in flight, which waits for a change: this is one.
        stopping = threading.Thread(target=follower.stop)
        stopping.start()
        self.put(db, "last")
        stopping.join(WAIT_S_MAX)
        listener.join(WAIT_S_MAX)
        self.assertFalse(stopping.is_alive() or listener.is_alive())
        self.assertEqual([doc_id for doc_id in received if doc_id != "last"], ids)

    def test_a_missing_database_ends_a_follower_at_once(self):
        with self.refused(404, "not_found: Database does not exist."):
            list(ChangesFollower(self.couch, db="nowhere").start())
