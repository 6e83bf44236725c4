package interop

// Goal: kivik queries views and finds documents as with CouchDB 3.5.0.
// Method: its calls for views, indexes, searches and partitions, each test against a server of its own. The expected
// values follow from the documents or were seen on CouchDB 3.5.0.

import (
	"encoding/json"
	"testing"

	"github.com/go-kivik/kivik/v4"
	"github.com/go-kivik/kivik/v4/couchdb"
)

const noIndex = "No matching index found, create an index to optimize query time."

// cities are documents by their identifiers.
var cities = map[string]members{
	"bern": {"country": "CH", "people": 134},
	"bonn": {"country": "DE", "people": 336},
	"chur": {"country": "CH", "people": 38},
	"ulm":  {"country": "DE", "people": 126},
}

var cityViews = members{
	"by_people": members{"map": "function (doc) { emit(doc.people, doc.country); }"},
	"people": members{
		"map":    "function (doc) { emit([doc.country, doc._id], doc.people); }",
		"reduce": "_sum",
	},
}

// newCities creates a database of the cities and their views; in a partitioned one their countries are partitions.
func newCities(t *testing.T, client *kivik.Client, partitioned bool) *kivik.DB {
	t.Helper()
	db := newDatabase(t, client, kivik.Param("partitioned", partitioned))
	for id, city := range cities {
		if partitioned {
			id = city["country"].(string) + ":" + id
		}
		put(t, db, id, city)
	}
	put(t, db, "_design/d", members{"views": cityViews})
	return db
}

// found reads the identifiers of the documents found.
func found(t *testing.T, rows *kivik.ResultSet) []string {
	t.Helper()
	ids := []string{}
	for rows.Next() {
		var doc struct {
			ID string `json:"_id"`
		}
		check(t, rows.ScanDoc(&doc))
		ids = append(ids, doc.ID)
	}
	check(t, rows.Err())
	return ids
}

// reduced reads the keys and values of a reduction, as JSON.
func reduced(t *testing.T, rows *kivik.ResultSet) string {
	t.Helper()
	var pairs []any
	for rows.Next() {
		var key, value any
		check(t, rows.ScanKey(&key))
		check(t, rows.ScanValue(&value))
		pairs = append(pairs, []any{key, value})
	}
	check(t, rows.Err())
	text, err := json.Marshal(pairs)
	check(t, err)
	return string(text)
}

func TestAViewIsReadByRangeKeyAndPage(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	for _, test := range []struct {
		options members
		wanted  []string
	}{
		{members{}, []string{"chur", "ulm", "bern", "bonn"}},
		{members{"startkey": 100, "endkey": 200}, []string{"ulm", "bern"}},
		{members{"key": 38}, []string{"chur"}},
		{members{"keys": []int{336, 1, 38}}, []string{"bonn", "chur"}},
		{members{"descending": true, "limit": 2, "skip": 1}, []string{"bern", "ulm"}},
		{members{"start_key": 126, "end_key": 134, "inclusive_end": false}, []string{"ulm"}},
		{members{"limit": 0}, []string{}},
	} {
		equal(t, ids(t, db.Query(ctx, "_design/d", "_view/by_people", kivik.Params(test.options))), test.wanted)
	}
	rows := db.Query(ctx, "d", "by_people", kivik.Params(members{"startkey": 130, "include_docs": true, "update_seq": true}))
	equal(t, rows.Next(), true)
	var key int
	var value string
	var doc members
	check(t, rows.ScanKey(&key))
	check(t, rows.ScanValue(&value))
	check(t, rows.ScanDoc(&doc))
	equal(t, []any{key, value, doc["_id"]}, []any{134, "CH", "bern"})
	equal(t, []bool{rows.Next(), rows.Next()}, []bool{true, false})
	check(t, rows.Err())
	metadata, err := rows.Metadata()
	check(t, err)
	stats, err := db.Stats(ctx)
	check(t, err)
	equal(t, []any{metadata.TotalRows, metadata.Offset, metadata.UpdateSeq}, []any{int64(4), int64(2), stats.UpdateSeq})
}

func TestAViewIsReducedByGroup(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	for _, test := range []struct {
		options members
		wanted  string
	}{
		{members{}, `[[null,634]]`},
		{members{"group_level": 1}, `[[["CH"],172],[["DE"],462]]`},
		{members{"group": true, "startkey": []string{"DE"}}, `[[["DE","bonn"],336],[["DE","ulm"],126]]`},
		{members{"group": true, "keys": [][]string{{"CH", "chur"}, {"none"}}}, `[[["CH","chur"],38]]`},
		{members{"key": "none"}, `null`},
	} {
		equal(t, reduced(t, db.Query(ctx, "d", "people", kivik.Params(test.options))), test.wanted)
	}
}

func TestManyQueriesAreSentAtOnce(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	queries := kivik.Param("queries", []members{{"key": 38}, {"key": "none"}, {"startkey": 130, "descending": false}})
	rows := db.Query(ctx, "d", "by_people", queries)
	var results [][]string
	for rows.NextResultSet() {
		results = append(results, ids(t, rows))
	}
	// The client learns of the end only after the last result.
	equal(t, results, [][]string{{"chur"}, {}, {"bern", "bonn"}, {}})
}

func TestQueriesAreRefusedWithAReason(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	for _, test := range []struct {
		ddoc, view string
		options    members
		status     int
		message    string
	}{
		{"d", "none", nil, 404, "Not Found: missing_named_view"},
		{"none", "none", nil, 404, "Not Found: missing"},
		{"d", "by_people", members{"group": true}, 400, "Bad Request: Invalid use of grouping on a map view."},
		{"d", "people", members{"include_docs": true}, 400, "Bad Request: `include_docs` is invalid for reduce"},
		{"d", "by_people", members{"limit": -1}, 400, `Bad Request: Invalid value for positive integer: "-1"`},
		{"d", "by_people", members{"startkey": 2, "endkey": 1}, 400, "Bad Request: No rows can match your key range, " +
			"reverse your start_key and end_key or set descending=true"},
	} {
		refused(t, db.Query(ctx, test.ddoc, test.view, kivik.Params(test.options)).Err(), test.status, test.message)
	}
	_, err := db.Put(ctx, "_design/e", members{"views": members{"a": members{"map": "function () {}", "reduce": "_x"}}})
	refused(t, err, 400, "Bad Request: `_x` is not a supported reduce function.")
}

func TestAnIndexFollowsItsDocumentsAndIsCompacted(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	equal(t, len(ids(t, db.Query(ctx, "d", "by_people"))), 4)
	ulm := get(t, db, "ulm")
	ulm["people"] = 500
	put(t, db, "ulm", ulm)
	_, err := db.Delete(ctx, "chur", get(t, db, "chur")["_rev"].(string))
	check(t, err)
	equal(t, ids(t, db.Query(ctx, "d", "by_people")), []string{"bern", "bonn", "ulm"})
	check(t, db.CompactView(ctx, "d"))
	check(t, db.ViewCleanup(ctx))
	equal(t, ids(t, db.Query(ctx, "d", "by_people")), []string{"bern", "bonn", "ulm"})
	refused(t, db.CompactView(ctx, "none"), 404, "Not Found: missing")
}

func TestAWriteIsRefusedByValidation(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	put(t, db, "_design/d", members{"validate_doc_update": `function (doc) {
		if (doc.people < 0) throw { forbidden: 'Nobody is the least.' };
		if (doc.people > 1e6) throw { unauthorized: 'Too many.' };
	}`})
	_, err := db.Put(ctx, "a", members{"people": -1})
	refused(t, err, 403, "Forbidden: Nobody is the least.")
	_, err = db.Put(ctx, "a", members{"people": 2_000_000})
	refused(t, err, 401, "Unauthorized: Too many.")
	results, err := db.BulkDocs(ctx, []any{members{"_id": "a", "people": -1}, members{"_id": "b", "people": 1}})
	check(t, err)
	// To the client every error of a bulk except a conflict is a 500.
	equal(t, results[0].ID, "a")
	refused(t, results[0].Error, 500, "Nobody is the least.")
	equal(t, []any{results[1].ID, results[1].Error}, []any{"b", nil})
}

func TestAnIndexIsCreatedListedAndDeleted(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	check(t, db.CreateIndex(ctx, "i", "by-people", members{"fields": []string{"people"}}))
	check(t, db.CreateIndex(ctx, "i", "by-people", `{"fields":["people"]}`))
	indexes, err := db.GetIndexes(ctx)
	check(t, err)
	equal(t, indexes, []kivik.Index{
		{Name: "_all_docs", Type: "special", Definition: members{"fields": []any{members{"_id": "asc"}}}},
		{DesignDoc: "_design/i", Name: "by-people", Type: "json", Definition: members{"fields": []any{members{"people": "asc"}}}},
	})
	check(t, db.DeleteIndex(ctx, "i", "by-people"))
	refused(t, db.DeleteIndex(ctx, "i", "by-people"), 404, "Not Found: missing")
	indexes, err = db.GetIndexes(ctx)
	check(t, err)
	equal(t, len(indexes), 1)
	err = db.CreateIndex(ctx, "", "", members{})
	refused(t, err, 400, "Bad Request: Missing required key: fields")
}

func TestDocumentsAreFoundSortedAndInPages(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	query := members{"selector": members{"people": members{"$gt": 100}}}
	rows := db.Find(ctx, query)
	equal(t, found(t, rows), []string{"bern", "bonn", "ulm"})
	metadata, err := rows.Metadata()
	check(t, err)
	equal(t, metadata.Warning, noIndex)
	query["sort"], query["limit"] = []members{{"people": "desc"}}, 2
	refused(t, db.Find(ctx, query).Err(), 400,
		"Bad Request: No index exists for this sort, try indexing by the sort fields.")
	check(t, db.CreateIndex(ctx, "i", "by-people", members{"fields": []string{"people"}}))
	rows = db.Find(ctx, query)
	equal(t, found(t, rows), []string{"bonn", "bern"})
	metadata, err = rows.Metadata()
	check(t, err)
	equal(t, metadata.Warning, "")
	query["bookmark"] = metadata.Bookmark
	equal(t, found(t, db.Find(ctx, query)), []string{"ulm"})
	equal(t, found(t, db.Find(ctx, `{"selector":{"country":"CH"},"use_index":"i"}`)), []string{"bern", "chur"})
	refused(t, db.Find(ctx, `{"selector":{"a":{"$no":1}}}`).Err(), 400, "Bad Request: Invalid operator: $no")
}

func TestAnExplanationNamesTheIndex(t *testing.T) {
	ctx, db := t.Context(), newCities(t, connect(t), false)
	check(t, db.CreateIndex(ctx, "i", "by-people", members{"fields": []string{"people"}}))
	plan, err := db.Explain(ctx, `{"selector":{"people":{"$gt":100}},"fields":["_id"],"limit":7,"skip":1}`)
	check(t, err)
	equal(t, []any{plan.DBName, plan.Index["name"], plan.Limit, plan.Skip}, []any{db.Name(), "by-people", int64(7), int64(1)})
	equal(t, plan.Selector, members{"people": members{"$gt": 100.0}})
	equal(t, plan.Fields, []any{"_id"})
	plan, err = db.Explain(ctx, `{"selector":{"country":"CH"}}`)
	check(t, err)
	equal(t, []any{plan.Index["name"], plan.Options["bookmark"]}, []any{"_all_docs", "nil"})
}

func TestViewsAndSearchesAreConfinedToAPartition(t *testing.T) {
	client, ctx := connect(t), t.Context()
	db := newCities(t, client, true)
	swiss, german := couchdb.OptionPartition("CH"), couchdb.OptionPartition("DE")
	equal(t, ids(t, db.Query(ctx, "d", "by_people", swiss)), []string{"CH:chur", "CH:bern"})
	equal(t, ids(t, db.Query(ctx, "d", "by_people", swiss, kivik.Param("startkey", 100))), []string{"CH:bern"})
	equal(t, reduced(t, db.Query(ctx, "d", "people", german)), `[[null,462]]`)
	refused(t, db.Query(ctx, "d", "by_people").Err(), 400,
		"Bad Request: `partition` parameter is mandatory for queries to this view.")
	equal(t, ids(t, db.AllDocs(ctx, german)), []string{"DE:bonn", "DE:ulm"})

	query := members{"selector": members{"people": members{"$gt": 100}}}
	equal(t, found(t, db.Find(ctx, query, german)), []string{"DE:bonn", "DE:ulm"})
	check(t, db.CreateIndex(ctx, "i", "by-people", members{"fields": []string{"people"}}))
	query["sort"] = []string{"people"}
	equal(t, found(t, db.Find(ctx, query, german)), []string{"DE:ulm", "DE:bonn"})
	plan, err := db.Explain(ctx, query, german)
	check(t, err)
	equal(t, []any{plan.Index["name"], plan.Options["partition"]}, []any{"by-people", "DE"})

	plain := newCities(t, client, false)
	refused(t, plain.Query(ctx, "d", "by_people", swiss).Err(), 400, "Bad Request: database is not partitioned")
}
