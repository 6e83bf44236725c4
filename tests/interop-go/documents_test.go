package interop

// Goal: kivik reads and writes databases and documents as with CouchDB 3.5.0.
// Method: each of its calls for them; one server for each test.

import (
	"regexp"
	"strings"
	"testing"

	"github.com/go-kivik/kivik/v4"
)

// Hashes of revisions; at the same generation, the one with b wins.
var (
	endA = strings.Repeat("a", 32)
	endB = strings.Repeat("b", 32)
)

const conflict = "Conflict: Document update conflict."

func TestADatabaseIsCreatedOnceFoundListedAndDestroyed(t *testing.T) {
	client, ctx := connect(t), t.Context()
	// Without a plus sign: the client doesn't encode it, so the server reads a space.
	name := "life/of-a_db$(1)"
	check(t, client.CreateDB(ctx, name))
	refused(t, client.CreateDB(ctx, name), 412,
		"Precondition Failed: The database could not be created, the file already exists.")
	exists, err := client.DBExists(ctx, name)
	check(t, err)
	equal(t, exists, true)
	for _, other := range []string{"zoo", "bar"} {
		check(t, client.CreateDB(ctx, other))
	}
	names, err := client.AllDBs(ctx)
	check(t, err)
	equal(t, names, []string{"bar", name, "zoo"})
	names, err = client.AllDBs(ctx, kivik.Params(members{"startkey": `"c"`, "limit": 1}))
	check(t, err)
	equal(t, names, []string{name})
	stats, err := client.DB(name).Stats(ctx)
	check(t, err)
	equal(t, []any{stats.Name, stats.CompactRunning}, []any{name, false})
	equal(t, []int64{stats.DocCount, stats.DeletedCount}, []int64{0, 0})
	check(t, client.DestroyDB(ctx, name))
	refused(t, client.DestroyDB(ctx, name), 404, "Not Found: Database does not exist.")
	exists, err = client.DBExists(ctx, name)
	check(t, err)
	equal(t, exists, false)
	err = client.CreateDB(ctx, "Capital")
	equal(t, kivik.HTTPStatus(err), 400)
}

func TestADocumentIsCreatedReadUpdatedAndDeleted(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	first := put(t, db, "ulm", members{"name": "Ulm"})
	if !regexp.MustCompile(`^1-[0-9a-f]{32}$`).MatchString(first) {
		t.Errorf("%q is not a first revision", first)
	}
	equal(t, get(t, db, "ulm"), members{"_id": "ulm", "_rev": first, "name": "Ulm"})
	second := put(t, db, "ulm", members{"_rev": first, "name": "Ulm", "visits": 2})
	rev, err := db.GetRev(ctx, "ulm")
	check(t, err)
	equal(t, rev, second)
	for _, stale := range []members{{}, {"_rev": first}} {
		_, err := db.Put(ctx, "ulm", stale)
		refused(t, err, 409, conflict)
	}
	// Until a compaction.
	equal(t, get(t, db, "ulm", kivik.Rev(first)), members{"_id": "ulm", "_rev": first, "name": "Ulm"})
	refused(t, db.Get(ctx, "ulm", kivik.Rev("1-x")).Err(), 404, "Not Found: missing")
	copied, err := db.Copy(ctx, "new/ulm", "ulm", kivik.Rev(second))
	check(t, err)
	equal(t, get(t, db, "new/ulm"), members{"_id": "new/ulm", "_rev": copied, "name": "Ulm", "visits": float64(2)})
	_, err = db.Delete(ctx, "ulm", first)
	refused(t, err, 409, conflict)
	gone, err := db.Delete(ctx, "ulm", second)
	check(t, err)
	equal(t, gone[:2], "3-")
	refused(t, db.Get(ctx, "ulm").Err(), 404, "Not Found: deleted")
	refused(t, db.Get(ctx, "bern").Err(), 404, "Not Found: missing")
	refused(t, db.Client().DB("nowhere").Get(ctx, "ulm").Err(), 404, "Not Found: Database does not exist.")
	_, err = db.GetRev(ctx, "bern")
	refused(t, err, 404, "Not Found")
}

func TestADocumentWithoutAnIdGetsOne(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	id, rev, err := db.CreateDoc(ctx, members{"n": 1})
	check(t, err)
	equal(t, get(t, db, id), members{"_id": id, "_rev": rev, "n": float64(1)})
	equal(t, len(id), 32)
	id, _, err = db.CreateDoc(ctx, members{"_id": "mine"}, kivik.Param("batch", "ok"))
	check(t, err)
	equal(t, id, "mine")
}

func TestIdsMayContainAnythingExceptALeadingUnderscore(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	for _, id := range []string{"a/b", "a+b c", "ä€😀", "a?b=c&d#e", "100%", "_design/x", "_local/y"} {
		put(t, db, id, members{"of": id})
		equal(t, get(t, db, id)["_id"], id)
	}
	_, err := db.Put(ctx, "_mine", members{})
	refused(t, err, 400, "Bad Request: Only reserved document ids may start with underscore.")
	_, err = db.Put(ctx, "a", []int{})
	refused(t, err, 400, "Bad Request: Document must be a JSON object")
}

func TestBulksAreWrittenRowByRow(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	rev := put(t, db, "old", members{})
	rows, err := db.BulkDocs(ctx, []any{
		members{"_id": "new"},
		members{"_id": "old", "_rev": rev, "n": 2},
		members{"_id": "old", "n": 3},
		members{"_id": "new", "_rev": "1-" + endA, "_deleted": true},
	})
	check(t, err)
	equal(t, len(rows), 4)
	for index, wanted := range []string{"1-", "2-"} {
		check(t, rows[index].Error)
		equal(t, rows[index].Rev[:2], wanted)
	}
	for _, row := range rows[2:] {
		equal(t, kivik.HTTPStatus(row.Error), 409)
	}
	replicated := members{"_id": "old", "_rev": "1-" + endB, "n": 4}
	rows, err = db.BulkDocs(ctx, []any{replicated}, kivik.Param("new_edits", false))
	check(t, err)
	equal(t, len(rows), 0)
	equal(t, get(t, db, "old", kivik.Param("conflicts", true))["_conflicts"], []any{"1-" + endB})
}

func TestBulksAreReadByRevisionToo(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	for _, end := range []string{endA, endB} {
		_, err := db.BulkDocs(ctx, []any{members{"_id": "a", "_rev": "1-" + end}}, kivik.Param("new_edits", false))
		check(t, err)
	}
	asked := []kivik.BulkGetReference{{ID: "a", Rev: "1-" + endB}, {ID: "a", Rev: "1-" + endA}, {ID: "none"}}
	rows := db.BulkGet(ctx, asked)
	revs := []any{}
	for rows.Next() {
		var doc members
		if err := rows.ScanDoc(&doc); err != nil {
			revs = append(revs, err.Error())
		} else {
			revs = append(revs, doc["_rev"])
		}
	}
	check(t, rows.Err())
	equal(t, revs, []any{"1-" + endB, "1-" + endA, "not_found: missing"})
}

func TestListsHaveRangesKeysAndQueries(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	for _, id := range []string{"c", "a", "b", "_design/x", "_local/y", "gone"} {
		put(t, db, id, members{"name": id})
	}
	_, err := db.Delete(ctx, "gone", get(t, db, "gone")["_rev"].(string))
	check(t, err)
	rows := db.AllDocs(ctx, kivik.Param("update_seq", true))
	equal(t, ids(t, rows), []string{"_design/x", "a", "b", "c"})
	metadata, err := rows.Metadata()
	check(t, err)
	equal(t, []any{metadata.TotalRows, metadata.Offset, metadata.UpdateSeq != ""}, []any{int64(4), int64(0), true})
	for _, asked := range []struct {
		options members
		wanted  []string
	}{
		{members{"startkey": "b"}, []string{"b", "c"}},
		{members{"endkey": "b", "inclusive_end": false}, []string{"_design/x", "a"}},
		{members{"descending": true, "limit": 2, "skip": 1}, []string{"b", "a"}},
		{members{"key": "a"}, []string{"a"}},
	} {
		equal(t, ids(t, db.AllDocs(ctx, kivik.Params(asked.options))), asked.wanted)
	}
	rows = db.AllDocs(ctx, kivik.Param("keys", []string{"b", "none", "gone"}), kivik.IncludeDocs())
	found := []any{}
	for rows.Next() {
		var key string
		check(t, rows.ScanKey(&key))
		var doc members
		// The row of a missing document has no member `doc`, not even null.
		if err := rows.ScanDoc(&doc); err != nil {
			found = append(found, key, "no document")
		} else {
			found = append(found, key, doc["name"])
		}
	}
	check(t, rows.Err())
	equal(t, found, []any{"b", "b", "none", "no document", "gone", nil})
	equal(t, ids(t, db.DesignDocs(ctx)), []string{"_design/x"})
	equal(t, ids(t, db.LocalDocs(ctx)), []string{"_local/y"})
	many := db.AllDocs(ctx, kivik.Param("queries", []any{members{"keys": []string{"b"}}, members{"start_key": "b"}}))
	lists := [][]string{}
	for many.NextResultSet() {
		lists = append(lists, ids(t, many))
	}
	check(t, many.Err())
	// The client reports the end of the response as a list of its own.
	equal(t, lists, [][]string{{"b"}, {"b", "c"}, {}})
}

func TestAllRevisionsAreOpenedAtOnce(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	for _, end := range []string{endA, endB} {
		revision := members{"_id": "a", "_rev": "1-" + end, "end": end}
		_, err := db.BulkDocs(ctx, []any{revision}, kivik.Param("new_edits", false))
		check(t, err)
	}
	rows := db.OpenRevs(ctx, "a", []string{"1-" + endA, "1-" + endB, "7-" + endA})
	found := []any{}
	for rows.Next() {
		var doc members
		if err := rows.ScanDoc(&doc); err != nil {
			found = append(found, kivik.HTTPStatus(err))
		} else {
			found = append(found, doc["end"])
		}
	}
	check(t, rows.Err())
	equal(t, found, []any{endA, endB, 404})
}

func TestMissingRevisionsAreReportedWithTheirPossibleAncestors(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	rev := put(t, db, "a", members{})
	rows := db.RevsDiff(ctx, map[string][]string{"a": {rev, "2-" + endA}})
	equal(t, rows.Next(), true)
	id, err := rows.ID()
	check(t, err)
	var diff kivik.RevDiff
	check(t, rows.ScanValue(&diff))
	equal(t, id, "a")
	equal(t, diff, kivik.RevDiff{Missing: []string{"2-" + endA}, PossibleAncestors: []string{rev}})
	equal(t, rows.Next(), false)
	check(t, rows.Err())
}

func TestPurgedRevisionsLeaveNothing(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	rev := put(t, db, "a", members{})
	result, err := db.Purge(ctx, map[string][]string{"a": {rev}, "none": {"1-" + endA}})
	check(t, err)
	equal(t, result.Purged, map[string][]string{"a": {rev}, "none": {}})
	refused(t, db.Get(ctx, "a").Err(), 404, "Not Found: missing")
	stats, err := db.Stats(ctx)
	check(t, err)
	equal(t, []int64{stats.DocCount, stats.DeletedCount}, []int64{0, 0})
}

func TestAPartitionIsListedAndMeasured(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t), kivik.Param("partitioned", true))
	for _, id := range []string{"north:2", "north:1", "south:1"} {
		put(t, db, id, members{"text": strings.Repeat("x", 100)})
	}
	stats, err := db.PartitionStats(ctx, "north")
	check(t, err)
	equal(t, []any{stats.DBName, stats.Partition, stats.DocCount}, []any{db.Name(), "north", int64(2)})
	if stats.ExternalSize < 200 {
		t.Errorf("the partition has %d bytes", stats.ExternalSize)
	}
	_, err = db.Put(ctx, "nowhere", members{})
	refused(t, err, 400, "Bad Request: Doc id must be of form partition:id")
}
