"""Shared parts of the tests of `ibmcloudant`, IBM's maintained client."""

import contextlib

from ibm_cloud_sdk_core import ApiException
from ibm_cloud_sdk_core.authenticators import NoAuthAuthenticator
from ibmcloudant.cloudant_v1 import BulkDocs, CloudantV1

from settee import ServerTest


def client(url, authenticator=None):
    """Returns a new client, without a cookie; without an authenticator it is anonymous."""
    service = CloudantV1(authenticator=authenticator or NoAuthAuthenticator())
    service.set_service_url(url)
    return service


class CloudantTest(ServerTest):
    """A server, with a client as `self.couch`."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.couch = client(cls.server.url)

    def new_database(self, **options):
        name = self.new_name()
        self.couch.put_database(name, **options)
        return name

    def put(self, db, doc_id, **members):
        """Writes a document and returns its revision."""
        return self.couch.put_document(db, doc_id, members).get_result()["rev"]

    def get(self, db, doc_id, **options):
        return self.couch.get_document(db, doc_id, **options).get_result()

    def put_revision(self, db, doc_id, *ids, **members):
        """Writes a revision as replication does; `ids` are its path, the newest first."""
        revision = {"start": len(ids), "ids": list(ids)}
        documents = [{"_id": doc_id, "_rev": f"{len(ids)}-{ids[0]}", "_revisions": revision, **members}]
        answer = self.couch.post_bulk_docs(db, BulkDocs(docs=documents, new_edits=False))
        self.assertEqual((answer.get_status_code(), answer.get_result()), (201, []))

    @contextlib.contextmanager
    def refused(self, status, message):
        """Checks how the enclosed call is refused; the client joins CouchDB's error and reason."""
        with self.assertRaises(ApiException) as caught:
            yield
        self.assertEqual((caught.exception.status_code, caught.exception.message), (status, message))
