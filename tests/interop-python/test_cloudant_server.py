"""Goal: `ibmcloudant` reads the server's own endpoints as with CouchDB 3.5.0, and logs in.

Method: its calls that use no document, against a server without and one with an administrator.
"""

import threading

from ibm_cloud_sdk_core import ApiException
from ibm_cloud_sdk_core.authenticators import BasicAuthenticator
from ibmcloudant import CouchDbSessionAuthenticator

from cloudant import CloudantTest, client
from settee import WAIT_S_MAX


class Endpoints(CloudantTest):
    def test_the_welcome_and_the_health_are_couchdbs(self):
        welcome = self.couch.get_server_information().get_result()
        self.assertEqual(welcome["couchdb"], "Welcome")
        self.assertRegex(welcome["version"], r"^3\.5\.")
        self.assertEqual(self.couch.get_up_information().get_result(), {"status": "ok", "seeds": {}})
        self.assertEqual(self.couch.head_up_information().get_status_code(), 200)

    def test_as_many_identifiers_are_generated_as_requested(self):
        uuids = self.couch.get_uuids(count=100).get_result()["uuids"]
        self.assertEqual(len(set(uuids)), 100)
        for uuid in uuids:
            self.assertRegex(uuid, r"^[0-9a-f]{32}$")

    def test_the_cluster_is_this_one_machine(self):
        node = "nonode@nohost"
        self.assertEqual(
            self.couch.get_membership_information().get_result(), {"all_nodes": [node], "cluster_nodes": [node]}
        )
        db = self.new_database()
        shards = self.couch.get_shards_information(db).get_result()["shards"]
        self.assertTrue(shards)
        self.assertEqual(list(shards.values()), [[node]] * len(shards))
        self.put(db, "a")
        place = self.couch.get_document_shards_info(db, "a").get_result()
        self.assertEqual(place["nodes"], [node])
        self.assertIn(place["range"], shards)
        self.assertEqual(self.couch.get_active_tasks().get_result(), [])

    def test_database_updates_are_sent(self):
        since = self.couch.get_db_updates(since="now").get_result()["last_seq"]
        received = []
        waiting = threading.Thread(
            target=lambda: received.append(
                client(self.server.url).get_db_updates(feed="longpoll", since=since, timeout=30_000).get_result()
            )
        )
        waiting.start()
        db = self.new_database()
        waiting.join(WAIT_S_MAX)
        self.assertEqual([(row["db_name"], row["type"]) for row in received[0]["results"]], [(db, "created")])
        self.couch.delete_database(db)
        later = self.couch.get_db_updates(since=received[0]["last_seq"]).get_result()["results"]
        self.assertEqual([(row["db_name"], row["type"]) for row in later], [(db, "deleted")])

    def test_errors_have_the_members_by_which_the_client_traces_them(self):
        with self.assertRaises(ApiException) as caught:
            self.couch.get_database_information("nowhere")
        message = "not_found: Database does not exist."
        self.assertEqual((caught.exception.status_code, caught.exception.message), (404, message))
        response = caught.exception.http_response
        self.assertEqual(response.json()["trace"], response.headers["X-Couch-Request-ID"])
        self.assertEqual(response.json()["errors"], [{"code": "not_found", "message": message}])

    def test_endpoints_that_are_not_implemented_answer_501(self):
        db = self.new_database()
        for call, what in (
            (lambda: self.couch.post_search(db, "x", "all", "a:b"), "_search"),
            (lambda: self.couch.get_security(db), "_security"),
            (lambda: self.couch.get_scheduler_jobs(), "_scheduler"),
        ):
            with self.refused(501, f"not_implemented: {what} is not implemented yet."):
                call()


class Logins(CloudantTest):
    arguments = ("--admin", "ann:secret word")

    def test_the_password_is_accepted_and_a_wrong_one_refused(self):
        ann = client(self.server.url, BasicAuthenticator("ann", "secret word"))
        session = ann.get_session_information().get_result()
        self.assertEqual(session["userCtx"], {"name": "ann", "roles": ["_admin"]})
        self.assertEqual(session["info"]["authenticated"], "default")
        self.assertEqual(ann.get_all_dbs().get_result(), [])
        for name, password in (("ann", "secret"), ("bob", "secret word")):
            with self.refused(401, "unauthorized: Name or password is incorrect."):
                client(self.server.url, BasicAuthenticator(name, password)).get_all_dbs()

    def test_a_session_is_authorized_by_its_cookie(self):
        ann = client(self.server.url, CouchDbSessionAuthenticator("ann", "secret word"))
        session = ann.get_session_information().get_result()
        self.assertEqual(session["userCtx"], {"name": "ann", "roles": ["_admin"]})
        self.assertEqual(session["info"]["authenticated"], "cookie")
        ann.put_database("vault")
        self.assertEqual(ann.post_document("vault", {"_id": "gold"}).get_result()["id"], "gold")
        ann.delete_database("vault")
        # The client ignores a failed login except for its cookie, which is empty here.
        with self.refused(401, "unauthorized: You are not a server admin."):
            client(self.server.url, CouchDbSessionAuthenticator("ann", "wrong")).get_all_dbs()

    def test_anonymous_requests_may_read_only_the_welcome(self):
        self.assertEqual(self.couch.get_server_information().get_result()["couchdb"], "Welcome")
        self.assertEqual(self.couch.get_up_information().get_result()["status"], "ok")
        self.assertEqual(self.couch.get_session_information().get_result()["userCtx"], {"name": None, "roles": []})
        with self.refused(401, "unauthorized: You are not a server admin."):
            self.couch.get_all_dbs()
        with self.refused(401, "unauthorized: You are not authorized to access this db."):
            self.couch.get_document("vault", "gold")
