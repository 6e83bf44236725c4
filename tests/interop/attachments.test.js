// Goal: attachments written by CouchDB's clients are read back unchanged: inline, as multipart, alone, and
// replicated in both directions, with conflicts.
// Method: PouchDB's memory adapter and nano against one server; the contents are seeded random bytes.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { gunzipSync, gzipSync } from 'node:zlib';
import nano from 'nano';
import { newLocal, PouchDB } from './lib/pouch.js';
import { Random, SEED } from './lib/random.js';
import { killAll, Server } from './lib/settee.js';

/** Sizes around the thresholds of the storage format: 64 KiB, and chunks of 1 MiB. */
const SIZES = [0, 1, 1000, 64 << 10, (64 << 10) + 1, 1 << 20, (1 << 20) + 1, 3_000_000];

const random = new Random(SEED);
let server;
let couch;
let count = 0;

before(async () => {
  server = await Server.start();
  couch = nano(server.url);
});

after(() => server?.stop());
after(killAll);

/** `length` random bytes. */
function noise(length) {
  return Buffer.from(Uint32Array.from({ length: Math.ceil(length / 4) }, () => random.below(2 ** 32)).buffer, 0, length);
}

function content(length, kind) {
  return kind === 'text/plain' ? Buffer.from(random.text(length)) : noise(length);
}

async function newRemote() {
  const remote = new PouchDB(`${server.url}/attached-${(count += 1)}`);
  await remote.info();
  return remote;
}

async function newDatabase() {
  const name = `attached-${(count += 1)}`;
  await couch.db.create(name);
  return couch.use(name);
}

/** The contents of all leaves of all documents: members, and names, types and contents of attachments. */
async function everything(db) {
  const found = {};
  const { results } = await db.changes({ since: 0, style: 'all_docs' });
  for (const { id, changes } of results) {
    for (const { rev } of changes) {
      const { _attachments, ...members } = await db.get(id, { rev, revs: true });
      const attachments = {};
      for (const [name, { content_type, length }] of Object.entries(_attachments ?? {})) {
        const bytes = Buffer.from(await db.getAttachment(id, name, { rev }));
        assert.equal(bytes.length, length, `${id} ${name}`);
        attachments[name] = { content_type, sha: createHash('sha256').update(bytes).digest('hex') };
      }
      found[`${id} ${rev}`] = { members, attachments };
    }
  }
  return found;
}

async function assertSame(left, right) {
  const [here, there] = [await everything(left), await everything(right)];
  assert.deepEqual(here, there);
  return here;
}

/** A document with attachments of all sizes, compressible and not. */
function attached(id) {
  const _attachments = {};
  for (const size of SIZES) {
    for (const content_type of ['text/plain', 'image/png']) {
      _attachments[`${content_type.slice(0, 4)}-${size}`] = { content_type, data: content(size, content_type) };
    }
  }
  return { _id: id, _attachments };
}

test('PouchDB puts and gets attachments of all sizes', async () => {
  const remote = await newRemote();
  const document = attached('a');
  await remote.put(document);
  for (const [name, { content_type, data }] of Object.entries(document._attachments)) {
    const found = await remote.getAttachment('a', name);
    assert.ok(Buffer.compare(found, data) === 0, name);
    const inline = (await remote.get('a', { attachments: true, binary: true }))._attachments[name];
    assert.equal(inline.content_type, content_type);
    if (data.length < 100_000) assert.ok(Buffer.compare(inline.data, data) === 0, name);
  }
  const { rev } = await remote.putAttachment('a', 'more', (await remote.get('a'))._rev, Buffer.from('more'), 'text/css');
  assert.equal((await remote.getAttachment('a', 'more')).toString(), 'more');
  await remote.removeAttachment('a', 'more', rev);
  await assert.rejects(remote.getAttachment('a', 'more'), { status: 404 });
  assert.equal(Object.keys((await remote.get('a'))._attachments).length, 2 * SIZES.length);
});

test('attachments are replicated up, down and between servers\' databases', async () => {
  const local = newLocal();
  const one = await newRemote();
  const two = await newRemote();
  await local.put(attached('big'));
  for (let n = 0; n < 60; n++) {
    await local.put({ _id: `d${n}`, n, _attachments: { f: { content_type: 'text/plain', data: Buffer.from(`file ${n}`) } } });
  }
  await PouchDB.replicate(local, one);
  await assertSame(local, one);
  await PouchDB.replicate(one, two);
  await assertSame(one, two);
  const other = newLocal();
  await PouchDB.replicate(two, other);
  const all = await assertSame(two, other);
  assert.equal(Object.keys(all).length, 61);

  // Edits that keep, replace and remove attachments.
  const kept = await other.get('d1');
  await other.put({ ...kept, edited: true });
  await other.putAttachment('d2', 'f', (await other.get('d2'))._rev, Buffer.from('replaced'), 'text/plain');
  await other.removeAttachment('d3', 'f', (await other.get('d3'))._rev);
  await other.remove(await other.get('d4'));
  await PouchDB.replicate(other, one);
  await assertSame(other, one);
  assert.equal((await one.getAttachment('d1', 'f')).toString(), 'file 1');
  assert.equal((await one.getAttachment('d2', 'f')).toString(), 'replaced');
  await assert.rejects(one.getAttachment('d3', 'f'), { status: 404 });
});

test('conflicts keep their attachments on both sides', async () => {
  const local = newLocal();
  const remote = await newRemote();
  for (let n = 0; n < 20; n++) {
    await local.put({ _id: `d${n}`, _attachments: { shared: { content_type: 'image/png', data: noise(2000 + n) } } });
  }
  await PouchDB.sync(local, remote);
  for (const [side, db] of [['local', local], ['remote', remote]]) {
    for (let n = 0; n < 20; n++) {
      const { _rev } = await db.get(`d${n}`);
      await db.putAttachment(`d${n}`, side, _rev, Buffer.from(`${side} ${n}`), 'text/plain');
    }
  }
  await PouchDB.sync(local, remote);
  const all = await assertSame(local, remote);
  assert.equal(Object.keys(all).length, 40);
  for (const { attachments } of Object.values(all)) assert.ok(attachments.shared);

  // The winner is deleted; the attachments of the other leaf stay.
  const { _rev, _conflicts } = await remote.get('d0', { conflicts: true });
  await remote.remove('d0', _rev);
  await PouchDB.sync(local, remote);
  await assertSame(local, remote);
  assert.equal((await local.get('d0'))._rev, _conflicts[0]);
});

test('nano writes and reads documents with attachments as multipart', async () => {
  const db = await newDatabase();
  const files = [
    { name: 'noise.bin', data: noise(200_000), content_type: 'application/octet-stream' },
    { name: 'text.txt', data: random.text(50_000), content_type: 'text/plain' },
    { name: 'empty', data: Buffer.alloc(0), content_type: 'image/png' },
    { name: 'Zürich 東京.txt', data: 'ü€😀', content_type: 'text/plain' },
  ];
  const { rev } = await db.multipart.insert({ city: 'Ulm' }, files, 'ulm');
  assert.match(rev, /^1-/);
  const { city, _attachments } = await db.get('ulm');
  assert.equal(city, 'Ulm');
  for (const { name, data, content_type } of files) {
    const found = await db.attachment.get('ulm', encodeURIComponent(name));
    const text = typeof found === 'string' ? found : found.toString('latin1');
    const expected = typeof found === 'string' ? Buffer.from(data).toString() : Buffer.from(data).toString('latin1');
    assert.ok(text === expected, name);
    assert.equal(_attachments[name].content_type, content_type);
    assert.equal(_attachments[name].length, Buffer.byteLength(data));
  }
  const body = await db.multipart.get('ulm');
  assert.equal(typeof body, 'string');
  assert.match(body, /^--[0-9a-f]{32}\r\nContent-Type: application\/json\r\n\r\n\{"_id":"ulm"/);
  assert.match(body, /Content-Disposition: attachment; filename="text.txt"\r\nContent-Type: text\/plain\r\n/);

  const next = await db.multipart.insert({ city: 'Ulm', _rev: rev }, files.slice(0, 1), 'ulm');
  assert.deepEqual(Object.keys((await db.get('ulm'))._attachments), ['noise.bin']);
  await assert.rejects(db.multipart.insert({ city: 'Ulm', _rev: rev }, files, 'ulm'), { statusCode: 409 });
  await db.attachment.insert('ulm', 'more', Buffer.from('more'), 'image/gif', { rev: next.rev });
  assert.equal((await db.attachment.get('ulm', 'more')).toString(), 'more');
});

test('attachments written as multipart are read as multipart, byte by byte', async () => {
  const db = await newDatabase();
  const [binary, text] = [noise(300_000), Buffer.from(random.text(100_000))];
  await db.multipart.insert(
    {},
    [
      { name: 'b', data: binary, content_type: 'image/png' },
      { name: 't', data: text, content_type: 'text/plain' },
    ],
    'a',
  );
  const response = await fetch(`${server.url}/${db.config.db}/a?attachments=true`, { headers: { accept: 'multipart/related' } });
  const body = Buffer.from(await response.arrayBuffer());
  const boundary = /boundary="([^"]+)"/.exec(response.headers.get('content-type'))[1];
  const parts = [];
  for (let at = body.indexOf(`--${boundary}`); ; ) {
    const next = body.indexOf(`--${boundary}`, at + 1);
    if (next < 0) break;
    const part = body.subarray(at + boundary.length + 4, next - 2);
    const head = part.indexOf('\r\n\r\n');
    parts.push({ head: part.subarray(0, head).toString(), content: part.subarray(head + 4) });
    at = next;
  }
  assert.equal(parts.length, 3);
  assert.ok(Buffer.compare(parts[1].content, binary) === 0);
  assert.match(parts[2].head, /Content-Encoding: gzip/);
  assert.ok(Buffer.compare(gunzipSync(parts[2].content), text) === 0);
});

test('compressed JSON is accepted', async () => {
  const db = await newDatabase();
  const docs = Array.from({ length: 500 }, (_, n) => ({ _id: `d${n}`, text: 'again and again '.repeat(20) }));
  const response = await fetch(`${server.url}/${db.config.db}/_bulk_docs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' },
    body: gzipSync(JSON.stringify({ docs })),
  });
  assert.equal(response.status, 201);
  assert.equal((await db.info()).doc_count, 500);
});
