// Package interop tests the built Settee binary with Go's CouchDB client, kivik.
//
// This file starts and stops servers. Each has a free port and a temporary directory of its own, which are
// released at the end of the test that started it.
package interop

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-kivik/kivik/v4"
	_ "github.com/go-kivik/kivik/v4/couchdb" // the driver "couch"
)

// Longest wait for an expected event; only a failure takes that long.
const waitMax = time.Minute

var listens = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// binary returns the path of the binary under test.
func binary() string {
	if path := os.Getenv("SETTEE_BIN"); path != "" {
		return path
	}
	target := os.Getenv("CARGO_TARGET_DIR")
	if !filepath.IsAbs(target) {
		target = filepath.Join("..", "..", target)
		if os.Getenv("CARGO_TARGET_DIR") == "" {
			target = filepath.Join(target, "target")
		}
	}
	return filepath.Join(target, "debug", "settee")
}

// startServer starts `settee serve` with arguments and returns its address once it listens. At the end of the
// test the server is stopped by SIGTERM; its exit code must be 0.
func startServer(t *testing.T, arguments ...string) string {
	t.Helper()
	if !slices.Contains(arguments, "--admin") {
		arguments = append(arguments, "--no-admin")
	}
	arguments = append([]string{"serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0"}, arguments...)
	command := exec.Command(binary(), arguments...)
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "SETTEE_") {
			command.Env = append(command.Env, setting)
		}
	}
	var log bytes.Buffer
	command.Stderr = &log
	output, err := command.StdoutPipe()
	check(t, err)
	check(t, command.Start())
	found := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if address := listens.FindString(lines.Text()); address != "" {
				select {
				case found <- address:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(waitMax, func() { _ = command.Process.Kill() })
		<-ended
		if err := command.Wait(); err != nil {
			t.Errorf("the server failed to stop: %s\n%s", err, log.String())
		}
		late.Stop()
	})
	select {
	case address := <-found:
		return address
	case <-ended:
	case <-time.After(waitMax):
	}
	t.Fatalf("no server: %s", binary())
	return ""
}

// connect starts a server and returns a client of it.
func connect(t *testing.T) *kivik.Client {
	t.Helper()
	return newClient(t, startServer(t))
}

// newClient returns a new client, without a cookie.
func newClient(t *testing.T, url string) *kivik.Client {
	t.Helper()
	client, err := kivik.New("couch", url)
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

var databaseCount atomic.Int32

// newDatabase creates a database that no other test uses.
func newDatabase(t *testing.T, client *kivik.Client, options ...kivik.Option) *kivik.DB {
	t.Helper()
	name := fmt.Sprintf("go-%d", databaseCount.Add(1))
	check(t, client.CreateDB(t.Context(), name, options...))
	return client.DB(name)
}

// put writes a document and returns its revision.
func put(t *testing.T, db *kivik.DB, id string, doc any) string {
	t.Helper()
	rev, err := db.Put(t.Context(), id, doc)
	check(t, err)
	return rev
}

// get reads a document.
func get(t *testing.T, db *kivik.DB, id string, options ...kivik.Option) members {
	t.Helper()
	var doc members
	check(t, db.Get(t.Context(), id, options...).ScanDoc(&doc))
	return doc
}

// members of a JSON object.
type members = map[string]any

// ids reads the rows of a list to their end.
func ids(t *testing.T, rows *kivik.ResultSet) []string {
	t.Helper()
	found := []string{}
	for rows.Next() {
		id, err := rows.ID()
		check(t, err)
		found = append(found, id)
	}
	check(t, rows.Err())
	return found
}

// check ends the test if there is an error.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal compares the printed forms of two values, with quotes.
func equal(t *testing.T, found, wanted any) {
	t.Helper()
	if left, right := fmt.Sprintf("%#v", found), fmt.Sprintf("%#v", wanted); left != right {
		t.Errorf("found %s, not %s", left, right)
	}
}

// refused checks an error's status and the client's message, which ends with the reason.
func refused(t *testing.T, err error, status int, message string) {
	t.Helper()
	if err == nil {
		t.Errorf("not refused with %d %s", status, message)
	} else if kivik.HTTPStatus(err) != status || err.Error() != message {
		t.Errorf("refused with %d %q, not %d %q", kivik.HTTPStatus(err), err, status, message)
	}
}

// limited returns a context that ends after the longest wait.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	t.Cleanup(cancel)
	return ctx
}

// readAll reads a body to its end.
func readAll(t *testing.T, body io.ReadCloser) []byte {
	t.Helper()
	content, err := io.ReadAll(body)
	check(t, err)
	check(t, body.Close())
	return content
}
