"""Goal: `ibmcloudant` queries views and finds documents as with CouchDB 3.5.0.

Method: each of its calls for views, design functions, indexes and partitions, against one server, with a new database
for each test. The expected values follow from the documents or were seen on CouchDB 3.5.0.
"""

import json

from ibm_cloud_sdk_core import ApiException
from ibmcloudant import Pagination, PagerType
from ibmcloudant.cloudant_v1 import (
    BulkDocs,
    DesignDocument,
    DesignDocumentOptions,
    DesignDocumentViewsMapReduce,
    IndexDefinition,
    IndexField,
    ViewQuery,
)

from cloudant import CloudantTest, client

# Identifier, country, number of people.
CITIES = (("bern", "CH", 134), ("bonn", "DE", 336), ("chur", "CH", 38), ("ulm", "DE", 126))
BY_PEOPLE = DesignDocumentViewsMapReduce(map="function (doc) { emit(doc.people, doc.country); }")
PEOPLE = DesignDocumentViewsMapReduce(
    map="function (doc) { emit([doc.country, doc._id], doc.people); }", reduce="_stats"
)
NO_INDEX = "No matching index found, create an index to optimize query time."
ALL_DOCS = {"ddoc": None, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}}


def ids(result):
    """Returns the identifiers of a view's rows, or of the documents found."""
    return [row["id"] for row in result["rows"]] if "rows" in result else [doc["_id"] for doc in result["docs"]]


def read(streamed):
    """Reads a streamed response to its end."""
    return json.loads(b"".join(streamed.get_result().iter_content(chunk_size=1000)))


class QueriesTest(CloudantTest):
    """Databases with the cities and, as `d`, their views."""

    def new_cities(self, prefix=lambda country: "", **options):
        db = self.new_database(**options)
        docs = [
            {"_id": prefix(country) + doc_id, "country": country, "people": people}
            for doc_id, country, people in CITIES
        ]
        self.couch.post_bulk_docs(db, BulkDocs(docs=docs))
        design = DesignDocument(views={"by_people": BY_PEOPLE, "people": PEOPLE})
        self.couch.put_design_document(db, "d", design)
        return db


class Views(QueriesTest):
    def view(self, db, view, **options):
        return self.couch.post_view(db, "d", view, **options).get_result()

    def test_rows_are_read_by_range_key_and_page(self):
        db = self.new_cities()
        self.assertEqual(
            self.view(db, "by_people", start_key=100, end_key=200),
            {
                "total_rows": 4,
                "offset": 1,
                "rows": [{"id": "ulm", "key": 126, "value": "DE"}, {"id": "bern", "key": 134, "value": "CH"}],
            },
        )
        for options, wanted in (
            ({}, ["chur", "ulm", "bern", "bonn"]),
            ({"descending": True, "limit": 2, "skip": 1}, ["bern", "ulm"]),
            ({"key": 38}, ["chur"]),
            ({"keys": [336, 1, 38]}, ["bonn", "chur"]),
            ({"start_key": 126, "end_key": 134, "inclusive_end": False}, ["ulm"]),
            ({"start_key": 126, "start_key_doc_id": "v", "end_key": 336, "end_key_doc_id": "a"}, ["bern"]),
            ({"limit": 0}, []),
            ({"update": "true", "stable": False}, ["chur", "ulm", "bern", "bonn"]),
        ):
            with self.subTest(options=options):
                self.assertEqual(ids(self.view(db, "by_people", **options)), wanted)

    def test_rows_have_their_documents_with_conflicts_and_attachments(self):
        db = self.new_database()
        for branch in "ab":
            self.put_revision(db, "x", branch * 32, people=1)
        self.couch.put_attachment(db, "y", "a.txt", b"hello", "text/plain")
        self.couch.put_design_document(db, "d", DesignDocument(views={"by_people": BY_PEOPLE}))
        rows = self.view(db, "by_people", include_docs=True, conflicts=True, attachments=True)["rows"]
        docs = {row["id"]: row["doc"] for row in rows}
        self.assertEqual(docs["x"]["_conflicts"], [f"1-{'a' * 32}"])
        self.assertEqual(docs["y"]["_attachments"]["a.txt"]["data"], "aGVsbG8=")

    def test_rows_are_reduced_by_group(self):
        db = self.new_cities()
        (row,) = self.view(db, "people")["rows"]
        self.assertEqual((row["key"], row["value"]["sum"], row["value"]["max"]), (None, 634, 336))
        by_country = self.view(db, "people", group_level=1)["rows"]
        self.assertEqual([(row["key"], row["value"]["count"]) for row in by_country], [(["CH"], 2), (["DE"], 2)])
        one = self.view(db, "people", group=True, keys=[["DE", "ulm"], ["DE", "none"]])["rows"]
        self.assertEqual([(row["key"], row["value"]["sumsqr"]) for row in one], [(["DE", "ulm"], 126 * 126)])
        within = self.view(db, "people", reduce=False, start_key=["CH"], end_key=["CH", {}])
        self.assertEqual(ids(within), ["bern", "chur"])

    def test_many_queries_are_sent_at_once(self):
        db = self.new_cities()
        queries = [ViewQuery(key=38), ViewQuery(start_key=130, limit=1, include_docs=True), ViewQuery(keys=[336, 126])]
        results = self.couch.post_view_queries(db, "d", "by_people", queries).get_result()["results"]
        self.assertEqual([ids(result) for result in results], [["chur"], ["bern"], ["bonn", "ulm"]])
        self.assertEqual(results[1]["rows"][0]["doc"]["country"], "CH")
        streamed = self.couch.post_view_queries_as_stream(db, "d", "by_people", queries)
        self.assertEqual(read(streamed), {"results": results})

    def test_rows_are_streamed_and_paged(self):
        db = self.new_cities()
        streamed = self.couch.post_view_as_stream(db, "d", "by_people", limit=2)
        self.assertEqual(ids(read(streamed)), ["chur", "ulm"])
        options = {"db": db, "ddoc": "d", "view": "by_people", "limit": 1}
        pages = Pagination.new_pagination(self.couch, PagerType.POST_VIEW, **options).pages()
        self.assertEqual([[row.id for row in page] for page in pages], [["chur"], ["ulm"], ["bern"], ["bonn"]])

    def test_rows_have_the_position_of_the_database(self):
        db = self.new_cities()
        now = self.couch.get_database_information(db).get_result()["update_seq"]
        self.assertEqual(self.view(db, "by_people", update_seq=True)["update_seq"], now)
        self.assertEqual(len(self.view(db, "by_people", update="false")["rows"]), 4)
        self.put(db, "york", people=210)
        self.view(db, "by_people", update="lazy")
        self.assertEqual(self.view(db, "by_people")["total_rows"], 5)

    def test_a_design_document_describes_its_index(self):
        db = self.new_cities()
        self.view(db, "by_people")
        found = self.couch.get_design_document_information(db, "d").get_result()
        index = found["view_index"]
        self.assertEqual((found["name"], index["language"], index["updater_running"]), ("d", "javascript", False))
        self.assertRegex(index["signature"], r"^[0-9a-f]{32}$")
        self.assertEqual(set(index["sizes"]), {"file", "external", "active"})

    def test_queries_are_refused_with_a_reason(self):
        db = self.new_cities()
        with self.refused(404, "not_found: missing_named_view"):
            self.view(db, "none")
        with self.refused(404, "not_found: missing"):
            self.couch.post_view(db, "none", "none")
        for view, options, reason in (
            ("by_people", {"group": True}, "Invalid use of grouping on a map view."),
            ("people", {"include_docs": True}, "`include_docs` is invalid for reduce"),
            ("by_people", {"keys": [1, 2], "key": 1}, "`keys` is incompatible with `key`, `start_key` and `end_key`"),
            (
                "by_people",
                {"start_key": 2, "end_key": 1},
                "No rows can match your key range, reverse your start_key and end_key or set descending=true",
            ),
        ):
            with self.subTest(options=options), self.refused(400, f"query_parse_error: {reason}"):
                self.view(db, view, **options)

    def test_a_design_document_with_an_error_is_refused(self):
        db = self.new_database()
        for view, message in (
            ({"map": "function ("}, "compilation_error: Compilation of the map function in the 'a' view failed: "),
            ({"map": 1}, "invalid_design_doc: `views.a.map` field must have string type"),
            ({"map": "function () {}", "reduce": "_x"}, "invalid_design_doc: `_x` is not a supported reduce function."),
        ):
            with self.subTest(view=view), self.assertRaises(ApiException) as caught:
                self.couch.put_design_document(db, "d", {"views": {"a": view}})
            self.assertEqual(caught.exception.status_code, 400)
            self.assertEqual(caught.exception.message[: len(message)], message)

    def test_a_write_is_refused_by_a_design_document(self):
        db = self.new_database()
        validate = """function (newDoc, oldDoc) {
            if (newDoc.people < 0) throw { forbidden: 'Nobody is the least.' };
            if (oldDoc && newDoc.country !== oldDoc.country) throw { unauthorized: 'It does not move.' };
        }"""
        self.couch.put_design_document(db, "d", DesignDocument(validate_doc_update=validate))
        rev = self.put(db, "ulm", country="DE")
        with self.refused(403, "forbidden: Nobody is the least."):
            self.put(db, "york", people=-1)
        with self.refused(401, "unauthorized: It does not move."):
            self.couch.put_document(db, "ulm", {"_rev": rev, "country": "CH"})

    def test_changes_are_filtered_by_a_function_and_by_a_view(self):
        db = self.new_database()
        # The client can't send a filter's own parameters.
        filters = {"country": "function (doc, req) { return doc.country === 'CH'; }"}
        large = DesignDocumentViewsMapReduce(map="function (doc) { if (doc.people > 130) emit(doc._id); }")
        self.couch.put_design_document(db, "d", DesignDocument(filters=filters, views={"large": large}))
        for doc_id, country, people in CITIES:
            self.put(db, doc_id, country=country, people=people)
        for options, wanted in (
            ({"filter": "d/country"}, ["bern", "chur"]),
            ({"filter": "_view", "view": "d/large"}, ["bern", "bonn"]),
        ):
            rows = self.couch.post_changes(db, **options).get_result()["results"]
            self.assertEqual([row["id"] for row in rows], wanted)
        with self.refused(404, "not_found: missing json key: none"):
            self.couch.post_changes(db, filter="d/none")


class Searches(QueriesTest):
    def index(self, db, *fields, **options):
        definition = IndexDefinition(fields=[IndexField.from_dict({field: "asc"}) for field in fields])
        return self.couch.post_index(db, definition, type="json", **options).get_result()

    def find(self, db, selector, **options):
        return self.couch.post_find(db, selector, **options).get_result()

    def test_an_index_is_created_once_listed_and_deleted(self):
        db = self.new_cities()
        wanted = {"id": "_design/i", "name": "by-people", "result": "created"}
        self.assertEqual(self.index(db, "people", ddoc="i", name="by-people"), wanted)
        self.assertEqual(self.index(db, "people", ddoc="i", name="by-people")["result"], "exists")
        listed = {
            "ddoc": "_design/i",
            "name": "by-people",
            "type": "json",
            "partitioned": False,
            "def": {"fields": [{"people": "asc"}]},
        }
        indexes = self.couch.get_indexes_information(db).get_result()
        self.assertEqual(indexes, {"total_rows": 2, "indexes": [ALL_DOCS, listed]})
        self.assertEqual(self.couch.delete_index(db, "i", "json", "by-people").get_result(), {"ok": True})
        self.assertEqual(self.couch.get_indexes_information(db).get_result()["indexes"], [ALL_DOCS])
        with self.refused(404, "not_found: missing"):
            self.couch.delete_index(db, "i", "json", "by-people")
        with self.refused(503, "required index service unavailable: text"):
            self.couch.post_index(db, IndexDefinition(fields=[IndexField(name="a", type="string")]), type="text")

    def test_documents_are_found_sorted_and_in_pages(self):
        db = self.new_cities()
        selector = {"people": {"$gt": 100}}
        with self.refused(400, "no_usable_index: No index exists for this sort, try indexing by the sort fields."):
            self.find(db, selector, sort=[{"people": "asc"}])
        unsorted = self.find(db, selector)
        self.assertEqual((ids(unsorted), unsorted["warning"]), (["bern", "bonn", "ulm"], NO_INDEX))
        self.index(db, "people", ddoc="i", name="by-people")
        found = self.find(
            db, selector, sort=[{"people": "desc"}], fields=["_id", "people"], limit=2, execution_stats=True
        )
        self.assertEqual(found["docs"], [{"_id": "bonn", "people": 336}, {"_id": "bern", "people": 134}])
        self.assertNotIn("warning", found)
        self.assertEqual(found["execution_stats"]["results_returned"], 2)
        rest = self.find(db, selector, sort=[{"people": "desc"}], limit=2, bookmark=found["bookmark"])
        self.assertEqual(ids(rest), ["ulm"])
        named = self.find(db, {"people": 38}, use_index=["i", "by-people"], allow_fallback=False, conflicts=True)
        self.assertEqual(ids(named), ["chur"])
        streamed = self.couch.post_find_as_stream(db, selector, sort=["people"], skip=1)
        self.assertEqual(ids(read(streamed)), ["bern", "bonn"])

    def test_the_clients_pager_finds_every_document_once(self):
        db = self.new_cities()
        for selector in ({"people": {"$gt": 100}}, {"_id": {"$gt": None}}, {"country": {"$in": ["CH"]}}):
            options = {"db": db, "selector": selector, "limit": 1}
            pages = Pagination.new_pagination(self.couch, PagerType.POST_FIND, **options).rows()
            self.assertEqual([doc._id for doc in pages], ids(self.find(db, selector)), selector)

    def test_an_unusable_index_is_replaced_or_refused(self):
        db = self.new_cities()
        self.index(db, "people", ddoc="i", name="by-people")
        found = self.find(db, {"country": "CH"}, use_index=["i"])
        self.assertEqual(ids(found), ["bern", "chur"])
        unused = "_design/i was not used because it does not contain a valid index for this query."
        self.assertEqual(found["warning"], f"{unused}\n{NO_INDEX}")
        with self.assertRaises(ApiException) as caught:
            self.find(db, {"country": "CH"}, use_index=["i"], allow_fallback=False)
        self.assertEqual(caught.exception.status_code, 400)
        self.assertRegex(caught.exception.message, "^invalid_index: ")

    def test_a_partial_index_has_only_what_its_filter_matches(self):
        db = self.new_cities()
        definition = IndexDefinition(
            fields=[IndexField.from_dict({"people": "asc"})], partial_filter_selector={"country": "CH"}
        )
        self.couch.post_index(db, definition, type="json", ddoc="swiss", name="people")
        self.assertEqual(ids(self.find(db, {"people": {"$gt": 50}}, use_index=["swiss"])), ["bern"])
        self.assertEqual(ids(self.find(db, {"people": {"$gt": 50}})), ["bern", "bonn", "ulm"])

    def test_an_explanation_names_the_index_and_the_range(self):
        db = self.new_cities()
        self.index(db, "people", ddoc="i", name="by-people")
        found = self.couch.post_explain(db, {"people": {"$gt": 100}}, limit=7, fields=["people"]).get_result()
        self.assertEqual((found["dbname"], found["index"]["name"], found["limit"]), (db, "by-people", 7))
        self.assertEqual(found["mrargs"]["start_key"], [100])
        self.assertEqual((found["mrargs"]["end_key"], found["covering"]), (["<MAX>"], True))
        self.assertEqual(found["selector"], {"people": {"$gt": 100}})
        others = self.couch.post_explain(db, {"country": "CH"}).get_result()
        self.assertEqual(others["index"]["name"], "_all_docs")
        (candidate,) = others["index_candidates"]
        self.assertEqual((candidate["index"]["name"], candidate["analysis"]["usable"]), ("by-people", False))
        self.assertEqual(others["selector_hints"][0]["indexable_fields"], ["country"])

    def test_searches_are_refused_with_a_reason(self):
        db = self.new_cities()
        for selector, options, message in (
            ({"a": {"$no": 1}}, {}, "invalid_operator: Invalid operator: $no"),
            ({"a": {"$in": 1}}, {}, "bad_arg: Bad argument for operator $in: 1"),
            (
                {"a": 1},
                {"sort": [{"a": "asc"}, {"b": "desc"}]},
                "unsupported_mixed_sort: Sorts currently only support a single direction for all fields.",
            ),
        ):
            with self.subTest(selector=selector), self.refused(400, message):
                self.find(db, selector, **options)

    def test_full_text_search_is_not_implemented(self):
        db = self.new_cities()
        with self.refused(501, "not_implemented: _search is not implemented yet."):
            self.couch.post_search(db, "d", "any", "people:1")


class Partitions(QueriesTest):
    def new_partitions(self):
        return self.new_cities(lambda country: f"{country}:", partitioned=True)

    def test_a_view_is_queried_within_one_partition(self):
        db = self.new_partitions()

        def query(partition, view, **options):
            return self.couch.post_partition_view(db, partition, "d", view, **options).get_result()

        self.assertEqual(ids(query("CH", "by_people")), ["CH:chur", "CH:bern"])
        self.assertEqual(ids(query("CH", "by_people", start_key=100, include_docs=True)), ["CH:bern"])
        self.assertEqual(ids(query("none", "by_people")), [])
        self.assertEqual(query("DE", "people")["rows"][0]["value"]["sum"], 462)
        streamed = self.couch.post_partition_view_as_stream(db, "DE", "d", "by_people", key=126)
        self.assertEqual(ids(read(streamed)), ["DE:ulm"])
        options = {"db": db, "partition_key": "DE", "ddoc": "d", "view": "by_people", "limit": 1}
        paged = Pagination.new_pagination(self.couch, PagerType.POST_PARTITION_VIEW, **options).rows()
        self.assertEqual([row.id for row in paged], ["DE:ulm", "DE:bonn"])

    def test_a_design_document_serves_either_partitions_or_the_database(self):
        db = self.new_partitions()
        everywhere = DesignDocument(options=DesignDocumentOptions(partitioned=False), views={"by_people": BY_PEOPLE})
        self.couch.put_design_document(db, "all", everywhere)
        self.assertEqual(len(ids(self.couch.post_view(db, "all", "by_people").get_result())), 4)
        with self.refused(400, "query_parse_error: `partition` parameter is mandatory for queries to this view."):
            self.couch.post_view(db, "d", "by_people")
        with self.refused(400, "query_parse_error: `partition` parameter is not supported in this design doc"):
            self.couch.post_partition_view(db, "CH", "all", "by_people")
        plain = self.new_cities()
        with self.refused(400, "bad_request: database is not partitioned"):
            self.couch.post_partition_view(plain, "CH", "d", "by_people")

    def test_documents_are_found_within_one_partition(self):
        db = self.new_partitions()
        selector = {"people": {"$gt": 100}}
        find = self.couch.post_partition_find
        self.assertEqual(ids(find(db, "DE", selector).get_result()), ["DE:bonn", "DE:ulm"])
        definition = IndexDefinition(fields=[IndexField.from_dict({"people": "asc"})])
        self.couch.post_index(db, definition, type="json", ddoc="i", name="by-people", partitioned=True)
        by_people = [{"people": "asc"}]
        self.assertEqual(ids(find(db, "DE", selector, sort=by_people).get_result()), ["DE:ulm", "DE:bonn"])
        streamed = self.couch.post_partition_find_as_stream(db, "CH", selector, sort=by_people)
        self.assertEqual(ids(read(streamed)), ["CH:bern"])
        explained = self.couch.post_partition_explain(db, "DE", selector).get_result()
        self.assertEqual((explained["index"]["name"], explained["partitioned"]), ("by-people", True))
        self.assertEqual((explained["opts"]["partition"], explained["mrargs"]["partition"]), ("DE", "DE"))
        # An index of partitions doesn't serve the whole database.
        everywhere = self.couch.post_explain(db, selector).get_result()
        self.assertEqual(everywhere["index"]["name"], "_all_docs")
        options = {"db": db, "partition_key": "DE", "selector": selector, "limit": 1}
        paged = Pagination.new_pagination(self.couch, PagerType.POST_PARTITION_FIND, **options).rows()
        self.assertEqual([doc._id for doc in paged], ["DE:ulm", "DE:bonn"])


class Permissions(CloudantTest):
    arguments = ("--admin", "ann:secret word")

    def test_anonymous_clients_query_nothing(self):
        anonymous = client(self.server.url)
        for call in (
            lambda: anonymous.post_view("vault", "d", "all"),
            lambda: anonymous.post_find("vault", {}),
            lambda: anonymous.get_indexes_information("vault"),
            lambda: anonymous.post_partition_find("vault", "p", {}),
        ):
            with self.refused(401, "unauthorized: You are not authorized to access this db."):
                call()
