package interop

// Goal: kivik follows the changes of a database, and of all databases, as in CouchDB 3.5.0.
// Method: every feed and filter that it has; a feed that waits is started before the change is made.

import (
	"testing"

	"github.com/go-kivik/kivik/v4"
)

// changed reads a feed to its end.
func changed(t *testing.T, changes *kivik.Changes) []string {
	t.Helper()
	found := []string{}
	for changes.Next() {
		found = append(found, changes.ID())
	}
	check(t, changes.Err())
	return found
}

func filled(t *testing.T, client *kivik.Client, names ...string) *kivik.DB {
	t.Helper()
	db := newDatabase(t, client)
	for _, name := range names {
		put(t, db, name, members{"name": name})
	}
	return db
}

func TestChangesAreListedOnceEachInOrderAndFromAPosition(t *testing.T) {
	ctx, db := t.Context(), filled(t, connect(t), "a", "b", "c")
	rev, err := db.Delete(ctx, "a", get(t, db, "a")["_rev"].(string))
	check(t, err)
	changes := db.Changes(ctx, kivik.Param("limit", 1))
	equal(t, changed(t, changes), []string{"b"})
	metadata, err := changes.Metadata()
	check(t, err)
	equal(t, metadata.Pending, int64(2))
	rest := db.Changes(ctx, kivik.Params(members{"since": metadata.LastSeq, "include_docs": true}))
	equal(t, rest.Next(), true)
	var doc members
	check(t, rest.ScanDoc(&doc))
	equal(t, []any{rest.ID(), rest.Deleted(), doc["name"]}, []any{"c", false, "c"})
	equal(t, rest.Next(), true)
	equal(t, []any{rest.ID(), rest.Deleted(), rest.Changes()}, []any{"a", true, []string{rev}})
	equal(t, rest.Next(), false)
	check(t, rest.Err())
	equal(t, changed(t, db.Changes(ctx, kivik.Param("since", "now"))), []string{})
	equal(t, changed(t, db.Changes(ctx, kivik.Param("descending", true))), []string{"a", "c", "b"})
}

func TestFiltersSelectByIdDesignDocumentFunctionAndView(t *testing.T) {
	ctx, db := t.Context(), filled(t, connect(t), "a", "b", "c")
	put(t, db, "_design/x", members{
		"filters": members{"named": "function (doc, req) { return doc.name === req.query.name; }"},
		"views":   members{"late": members{"map": "function (doc) { if (doc.name > 'a') emit(doc.name); }"}},
	})
	asked := kivik.Params(members{"filter": "_doc_ids", "doc_ids": []string{"c", "a", "none"}})
	equal(t, changed(t, db.Changes(ctx, asked)), []string{"a", "c"})
	equal(t, changed(t, db.Changes(ctx, kivik.Param("filter", "_design"))), []string{"_design/x"})
	asked = kivik.Params(members{"filter": "x/named", "name": "b"})
	equal(t, changed(t, db.Changes(ctx, asked)), []string{"b"})
	asked = kivik.Params(members{"filter": "_view", "view": "x/late"})
	equal(t, changed(t, db.Changes(ctx, asked)), []string{"b", "c"})
	err := db.Changes(ctx, kivik.Param("filter", "x/none")).Err()
	refused(t, err, 404, "Not Found: missing json key: none")
}

func TestALongpollWaitsForAChangeAndEndsWithIt(t *testing.T) {
	client := connect(t)
	db, ctx := filled(t, client, "a"), limited(t)
	before := db.Changes(ctx)
	equal(t, changed(t, before), []string{"a"})
	metadata, err := before.Metadata()
	check(t, err)
	found := make(chan string, 1)
	go func() {
		feed := db.Changes(ctx, kivik.Params(members{"feed": "longpoll", "since": metadata.LastSeq, "heartbeat": 100}))
		for feed.Next() {
			found <- feed.ID()
		}
		close(found)
	}()
	put(t, db, "b", members{})
	equal(t, <-found, "b")
	_, more := <-found
	equal(t, more, false)
}

func TestAContinuousFeedSendsEveryChange(t *testing.T) {
	client := connect(t)
	db, ctx := filled(t, client, "a"), limited(t)
	feed := db.Changes(ctx, kivik.Params(members{"feed": "continuous", "since": "0", "heartbeat": 100}))
	next := func() string {
		if !feed.Next() {
			t.Fatalf("the feed ended: %v", feed.Err())
		}
		return feed.ID()
	}
	equal(t, next(), "a")
	for _, id := range []string{"b", "c", "d"} {
		put(t, db, id, members{})
		equal(t, next(), id)
	}
	equal(t, feed.Changes(), []string{get(t, db, "d")["_rev"].(string)})
	check(t, feed.Close())
}

func TestDatabaseUpdatesAreSent(t *testing.T) {
	client, ctx := connect(t), limited(t)
	// The client returns with the first row of a feed: there must be one.
	check(t, client.CreateDB(ctx, "first"))
	updates := client.DBUpdates(ctx, kivik.Params(members{"feed": "continuous", "since": "0", "heartbeat": 100}))
	next := func() []string {
		if !updates.Next() {
			t.Fatalf("the feed ended: %v", updates.Err())
		}
		return []string{updates.DBName(), updates.Type()}
	}
	equal(t, next(), []string{"first", "created"})
	check(t, client.DestroyDB(ctx, "first"))
	equal(t, next(), []string{"first", "deleted"})
	check(t, updates.Close())
	normal := client.DBUpdates(ctx, kivik.Params(members{"feed": "normal", "since": "0"}))
	rows := [][]string{}
	for normal.Next() {
		rows = append(rows, []string{normal.DBName(), normal.Type()})
	}
	check(t, normal.Err())
	equal(t, rows, [][]string{{"first", "created"}, {"first", "deleted"}})
}
