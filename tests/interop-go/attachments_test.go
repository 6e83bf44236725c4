package interop

// Goal: attachments written by kivik are read back unchanged: alone, inline and as multipart.
// Method: contents with every byte value, compressible and not; one server for each test.

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"github.com/go-kivik/kivik/v4"
	"github.com/go-kivik/kivik/v4/couchdb"
)

// allBytes returns `count` bytes that repeat all byte values.
func allBytes(count int) []byte {
	content := make([]byte, count)
	for index := range content {
		content[index] = byte(index * 7)
	}
	return content
}

func attachment(name, kind string, content []byte) *kivik.Attachment {
	return &kivik.Attachment{
		Filename: name, ContentType: kind, Content: io.NopCloser(bytes.NewReader(content)), Size: int64(len(content)),
	}
}

func digest(content []byte) string {
	sum := md5.Sum(content)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// gunzip decompresses an attachment that the server stores and sends compressed.
func gunzip(t *testing.T, content []byte) []byte {
	t.Helper()
	reader, err := gzip.NewReader(bytes.NewReader(content))
	check(t, err)
	return readAll(t, reader)
}

func TestAnAttachmentIsWrittenReadAndDeletedAlone(t *testing.T) {
	url := startServer(t)
	// By default the client compresses bodies and sends Content-Encoding: CouchDB, and so this server, stores
	// such an attachment as compressed. In both cases it is read back unchanged.
	plain, err := kivik.New("couch", url, couchdb.OptionNoRequestCompression())
	check(t, err)
	for _, client := range []*kivik.Client{plain, newClient(t, url)} {
		ctx, db := t.Context(), newDatabase(t, client)
		for _, content := range [][]byte{{}, []byte("small"), allBytes(300_000)} {
			id := "of " + digest(content)
			first, err := db.PutAttachment(ctx, id, attachment("a.bin", "application/octet-stream", content))
			check(t, err)
			found, err := db.GetAttachment(ctx, id, "a.bin")
			check(t, err)
			equal(t, found.ContentType, "application/octet-stream")
			equal(t, bytes.Equal(readAll(t, found.Content), content), true)
			meta, err := db.GetAttachmentMeta(ctx, id, "a.bin")
			check(t, err)
			if client == plain {
				equal(t, []any{meta.Digest, meta.Size}, []any{digest(content), int64(len(content))})
			}
			_, err = db.PutAttachment(ctx, id, attachment("b.bin", "text/plain", content))
			refused(t, err, 409, conflict)
			_, err = db.DeleteAttachment(ctx, id, "1-"+endA, "a.bin")
			refused(t, err, 409, "Conflict: missing_rev")
			_, err = db.DeleteAttachment(ctx, id, first, "none")
			equal(t, kivik.HTTPStatus(err), 404)
			second, err := db.DeleteAttachment(ctx, id, first, "a.bin")
			check(t, err)
			equal(t, second[:2], "2-")
			_, err = db.GetAttachment(ctx, id, "a.bin")
			refused(t, err, 404, "Not Found: Document is missing attachment")
		}
	}
}

func TestAttachmentsAreWrittenAndReadWithTheirDocument(t *testing.T) {
	url := startServer(t)
	plain, err := kivik.New("couch", url, couchdb.OptionNoRequestCompression())
	check(t, err)
	text := []byte(strings.Repeat("to be or not to be, ", 1000))
	// None is empty: this version of the client omits the data of an empty attachment.
	contents := map[string][]byte{"a.bin": allBytes(100_000), "b.txt": text, "c": {0}}
	// In this version of the client the option that should prevent multipart causes it; without the option
	// attachments are sent as base64.
	for _, options := range [][]kivik.Option{{}, {couchdb.OptionNoMultipartPut()}} {
		ctx, db := t.Context(), newDatabase(t, plain)
		attached := kivik.Attachments{}
		for name, content := range contents {
			kind := "application/octet-stream"
			if name == "b.txt" {
				kind = "text/plain"
			}
			attached[name] = attachment(name, kind, content)
		}
		rev, err := db.Put(ctx, "a", members{"n": 1, "_attachments": attached}, options...)
		check(t, err)
		stubs := get(t, db, "a")["_attachments"].(members)
		equal(t, len(stubs), len(contents))
		for name, content := range contents {
			stub := stubs[name].(members)
			equal(t, []any{stub["stub"], stub["revpos"], stub["length"]}, []any{true, float64(1), float64(len(content))})
		}
		equal(t, stubs["a.bin"].(members)["digest"], "md5-"+digest(contents["a.bin"]))
		put(t, db, "a", members{"n": 2, "_rev": rev, "_attachments": stubs})
		for _, how := range [][]kivik.Option{{}, {couchdb.OptionNoMultipartGet()}} {
			document := db.Get(ctx, "a", append(how, kivik.Param("attachments", true))...)
			found, err := document.Attachments()
			if len(how) == 0 {
				check(t, err)
				count := 0
				for {
					one, err := found.Next()
					if err == io.EOF {
						break
					}
					check(t, err)
					content := readAll(t, one.Content)
					if one.ContentEncoding == "gzip" {
						content = gunzip(t, content)
					}
					equal(t, bytes.Equal(content, contents[one.Filename]), true)
					count++
				}
				equal(t, count, len(contents))
				continue
			}
			var doc struct {
				N           int               `json:"n"`
				Attachments kivik.Attachments `json:"_attachments"`
			}
			check(t, document.ScanDoc(&doc))
			equal(t, doc.N, 2)
			for name, content := range contents {
				equal(t, bytes.Equal(readAll(t, doc.Attachments[name].Content), content), true)
			}
		}
	}
}

func TestAStubOfAMissingAttachmentIsRefused(t *testing.T) {
	ctx, db := t.Context(), newDatabase(t, connect(t))
	stub := members{"a.bin": members{"stub": true, "content_type": "text/plain", "length": 1, "revpos": 1}}
	_, err := db.Put(ctx, "a", members{"_attachments": stub})
	refused(t, err, 412, "Precondition Failed: Invalid attachment stub in a for a.bin")
}
