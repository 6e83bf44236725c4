package interop

// Goal: kivik reads the server's own endpoints as with CouchDB 3.5.0, and logs in.
// Method: its calls that use no document, against servers without and with an administrator.

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-kivik/kivik/v4"
	"github.com/go-kivik/kivik/v4/couchdb"
)

const node = "nonode@nohost"

func TestTheServerReportsItsVersionAndVendor(t *testing.T) {
	client, ctx := connect(t), t.Context()
	version, err := client.Version(ctx)
	check(t, err)
	if !regexp.MustCompile(`^3\.5\.`).MatchString(version.Version) || !strings.Contains(version.Vendor, "Settee") {
		t.Errorf("it is %s by %s", version.Version, version.Vendor)
	}
	equal(t, slices.Contains(version.Features, "partitioned"), true)
	up, err := client.Ping(ctx)
	check(t, err)
	equal(t, up, true)
	members, err := client.Membership(ctx)
	check(t, err)
	equal(t, []any{members.AllNodes, members.ClusterNodes}, []any{[]string{node}, []string{node}})
}

func TestDatabasesAreDescribedTogether(t *testing.T) {
	client, ctx := connect(t), t.Context()
	db := newDatabase(t, client)
	put(t, db, "a", members{})
	some, err := client.DBsStats(ctx, []string{db.Name(), "nowhere"})
	check(t, err)
	equal(t, len(some), 2)
	equal(t, []any{some[0].Name, some[0].DocCount, some[1] == nil}, []any{db.Name(), int64(1), true})
	all, err := client.AllDBsStats(ctx)
	check(t, err)
	equal(t, len(all), 1)
	equal(t, all[0].Name, db.Name())
}

func TestTheConfigurationIsReadWrittenAndDeleted(t *testing.T) {
	client, ctx := connect(t), t.Context()
	all, err := client.Config(ctx, node)
	check(t, err)
	equal(t, all["couchdb"]["max_document_size"], "8000000")
	old, err := client.SetConfigValue(ctx, node, "couchdb", "max_document_size", "1000")
	check(t, err)
	equal(t, old, "8000000")
	section, err := client.ConfigSection(ctx, node, "couchdb")
	check(t, err)
	equal(t, section["max_document_size"], "1000")
	db := newDatabase(t, client)
	_, err = db.Put(ctx, "a", members{"text": strings.Repeat("x", 2000)})
	refused(t, err, 413, "Request Entity Too Large: a")
	old, err = client.DeleteConfigKey(ctx, node, "couchdb", "max_document_size")
	check(t, err)
	equal(t, old, "1000")
	put(t, db, "a", members{"text": strings.Repeat("x", 2000)})
	_, err = client.SetConfigValue(ctx, node, "mine", "key", "value")
	check(t, err)
	value, err := client.ConfigValue(ctx, node, "mine", "key")
	check(t, err)
	equal(t, value, "value")
	_, err = client.ConfigValue(ctx, node, "mine", "none")
	refused(t, err, 404, "Not Found: unknown_config_value")
	_, err = client.ConfigValue(ctx, "other@host", "mine", "key")
	equal(t, kivik.HTTPStatus(err), 404)
}

func TestADatabaseIsCompactedCleanedAndFlushed(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	put(t, db, "a", members{})
	check(t, db.Compact(ctx))
	check(t, db.ViewCleanup(ctx))
	check(t, db.Flush(ctx))
	refused(t, db.Client().DB("nowhere").Compact(ctx), 404, "Not Found: Database does not exist.")
}

func TestEndpointsThatAreNotImplementedAnswer501(t *testing.T) {
	client, ctx := connect(t), t.Context()
	db := newDatabase(t, client)
	_, err := db.Security(ctx)
	refused(t, err, 501, "Not Implemented: _security is not implemented yet.")
	err = db.SetSecurity(ctx, &kivik.Security{})
	refused(t, err, 501, "Not Implemented: _security is not implemented yet.")
}

func TestAnAdministratorLogsInByCookieAndByPassword(t *testing.T) {
	address, ctx := startServer(t, "--admin", "ann:secret word"), t.Context()
	withUser, err := url.Parse(address)
	check(t, err)
	withUser.User = url.UserPassword("ann", "secret word")
	basic, err := kivik.New("couch", address, couchdb.BasicAuth("ann", "secret word"))
	check(t, err)
	for method, client := range map[string]*kivik.Client{"cookie": newClient(t, withUser.String()), "default": basic} {
		session, err := client.Session(ctx)
		check(t, err)
		equal(t, []any{session.Name, session.Roles, session.AuthenticationMethod}, []any{"ann", []string{"_admin"}, method})
		_, err = client.AllDBs(ctx)
		check(t, err)
		db := newDatabase(t, client)
		put(t, db, "a", members{})
		check(t, client.DestroyDB(ctx, db.Name()))
	}
	anonymous := newClient(t, address)
	session, err := anonymous.Session(ctx)
	check(t, err)
	equal(t, []any{session.Name, len(session.Roles)}, []any{"", 0})
	_, err = anonymous.AllDBs(ctx)
	refused(t, err, 401, "Unauthorized: You are not a server admin.")
	withUser.User = url.UserPassword("ann", "wrong")
	_, err = newClient(t, withUser.String()).AllDBs(ctx)
	equal(t, kivik.HTTPStatus(err), 401)
	state, err := basic.ClusterStatus(ctx)
	check(t, err)
	equal(t, state, "single_node_disabled")
	check(t, basic.ClusterSetup(ctx, members{"action": "enable_single_node"}))
	state, err = basic.ClusterStatus(ctx)
	check(t, err)
	equal(t, state, "single_node_enabled")
	names, err := basic.AllDBs(ctx)
	check(t, err)
	equal(t, names, []string{"_global_changes", "_replicator", "_users"})
}
