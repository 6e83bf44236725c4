// Goal: `nano`, CouchDB's client for Node, works as with CouchDB.
// Method: each part of its interface that needs no views (`nano-views.test.js` has the others), against one server,
// with a new database for each test.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import nano from 'nano';
import { nextEvent, Server, until } from './lib/settee.js';

const REVISION = /^1-[0-9a-f]{32}$/;

let server;
let couch;
let databaseCount = 0;

before(async () => {
  server = await Server.start();
  couch = nano(server.url);
});

after(() => server?.stop());

async function newDatabase() {
  const name = `nano-${(databaseCount += 1)}`;
  await couch.db.create(name);
  return couch.use(name);
}

/** Checks the status, error and reason with which a call is refused. */
const refused = (promise, statusCode, error, reason) =>
  assert.rejects(promise, (thrown) => {
    assert.deepEqual(
      { statusCode: thrown.statusCode, error: thrown.error, reason: thrown.reason },
      { statusCode, error, reason },
    );
    return true;
  });

test('the welcome is CouchDB\'s, and names the server', async () => {
  const welcome = await couch.info();
  assert.equal(welcome.couchdb, 'Welcome');
  assert.match(welcome.version, /^3\.5\./);
  assert.match(welcome.vendor.name, /settee/i);
  assert.deepEqual(await couch.relax({ path: '_up' }), { status: 'ok', seeds: {} });
});

test('a database is created once, listed, described and destroyed', async () => {
  assert.deepEqual(await couch.db.create('life/of-a_db$(1)+'), { ok: true });
  await refused(
    couch.db.create('life/of-a_db$(1)+'),
    412,
    'file_exists',
    'The database could not be created, the file already exists.',
  );
  assert.ok((await couch.db.list()).includes('life/of-a_db$(1)+'));
  const info = await couch.db.get('life/of-a_db$(1)+');
  assert.equal(info.db_name, 'life/of-a_db$(1)+');
  assert.equal(info.doc_count, 0);
  assert.equal(info.doc_del_count, 0);
  assert.equal(typeof info.update_seq, 'string');
  assert.equal(typeof info.instance_start_time, 'string');
  assert.deepEqual(await couch.db.destroy('life/of-a_db$(1)+'), { ok: true });
  await refused(couch.db.get('life/of-a_db$(1)+'), 404, 'not_found', 'Database does not exist.');
  await refused(couch.db.destroy('life/of-a_db$(1)+'), 404, 'not_found', 'Database does not exist.');
  assert.ok(!(await couch.db.list()).includes('life/of-a_db$(1)+'));
});

test('databases are listed in order', async () => {
  for (const name of ['zoo', 'bar', 'foo']) await couch.db.create(name);
  const names = await couch.db.list();
  assert.deepEqual(names, [...names].sort());
});

test('a document is created, read, updated and deleted', async () => {
  const db = await newDatabase();
  const first = await db.insert({ name: 'Ulm', visits: 1 }, 'ulm');
  assert.equal(first.ok, true);
  assert.equal(first.id, 'ulm');
  assert.match(first.rev, REVISION);
  assert.deepEqual(await db.get('ulm'), { _id: 'ulm', _rev: first.rev, name: 'Ulm', visits: 1 });
  assert.equal((await db.head('ulm')).etag, `"${first.rev}"`);

  const second = await db.insert({ _rev: first.rev, name: 'Ulm', visits: 2 }, 'ulm');
  assert.match(second.rev, /^2-/);
  await refused(
    db.insert({ _rev: first.rev, name: 'Ulm', visits: 3 }, 'ulm'),
    409,
    'conflict',
    'Document update conflict.',
  );
  await refused(db.insert({ name: 'Ulm' }, 'ulm'), 409, 'conflict', 'Document update conflict.');
  await refused(db.destroy('ulm', first.rev), 409, 'conflict', 'Document update conflict.');

  const gone = await db.destroy('ulm', second.rev);
  assert.equal(gone.ok, true);
  assert.match(gone.rev, /^3-/);
  await refused(db.get('ulm'), 404, 'not_found', 'deleted');
  await refused(db.get('never'), 404, 'not_found', 'missing');
  assert.deepEqual(await db.get('ulm', { rev: gone.rev }), { _id: 'ulm', _rev: gone.rev, _deleted: true });

  const reborn = await db.insert({ name: 'Ulm', visits: 4 }, 'ulm');
  assert.match(reborn.rev, /^4-/);
  const { doc_count, doc_del_count } = await db.info();
  assert.deepEqual({ doc_count, doc_del_count }, { doc_count: 1, doc_del_count: 0 });
});

test('a document without an id gets one', async () => {
  const db = await newDatabase();
  const made = await db.insert({ name: 'Ulm' });
  assert.match(made.id, /^[0-9a-f]{32}$/);
  assert.equal((await db.get(made.id)).name, 'Ulm');
});

test('ids and values of every alphabet are read back unchanged', async () => {
  const db = await newDatabase();
  const ids = ['a/b', 'a b', 'a+b', 'a%2Fb', 'a?b&c=d#e', '"quoted"', 'Zürich', '東京', '😀', 'back\\slash', 'x..y'];
  for (const id of ids) {
    const text = `${id}\u0000\u001f\u2028"\\/`;
    await db.insert({ [id]: text, number: 0.1, nested: [null, true, { deep: [] }] }, id);
    const found = await db.get(id);
    assert.equal(found._id, id);
    assert.equal(found[id], text);
    assert.deepEqual(found.nested, [null, true, { deep: [] }]);
  }
  const listed = (await db.list()).rows.map((row) => row.id);
  const byBytes = [...ids].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  assert.deepEqual(listed, byBytes);
});

test('a plus sign in a path is a space, as in CouchDB', async () => {
  const db = await newDatabase();
  await db.insert({ is: 'space' }, 'a b');
  await db.insert({ is: 'plus' }, 'a+b');
  const name = db.config.db;
  assert.equal((await server.expect(200, 'GET', `/${name}/a+b`)).is, 'space');
  assert.equal((await server.expect(200, 'GET', `/${name}/a%20b`)).is, 'space');
  assert.equal((await server.expect(200, 'GET', `/${name}/a%2Bb`)).is, 'plus');
});

test('a design document has one id, its slash escaped or not', async () => {
  const db = await newDatabase();
  const { rev } = await db.insert({ views: {} }, '_design/x');
  const name = db.config.db;
  assert.equal((await server.expect(200, 'GET', `/${name}/_design/x`))._rev, rev);
  assert.equal((await server.expect(200, 'GET', `/${name}/_design%2Fx`))._rev, rev);
});

test('each document of a bulk update has its own result', async () => {
  const db = await newDatabase();
  const { rev } = await db.insert({ n: 0 }, 'b');
  const rows = await db.bulk({
    docs: [{ _id: 'a', n: 1 }, { _id: 'b', n: 1 }, { _id: 'b', _rev: rev, n: 2 }, { n: 3 }, { _id: 'c', _deleted: true }],
  });
  assert.equal(rows.length, 5);
  assert.match(rows[0].rev, REVISION);
  assert.deepEqual(rows[1], { id: 'b', error: 'conflict', reason: 'Document update conflict.' });
  assert.match(rows[2].rev, /^2-/);
  assert.match(rows[3].id, /^[0-9a-f]{32}$/);
  assert.equal(rows[4].ok, true);
  assert.equal((await db.get('b')).n, 2);
  await refused(db.get('c'), 404, 'not_found', 'deleted');
});

test('documents are fetched by key: found, deleted and unknown ones', async () => {
  const db = await newDatabase();
  const a = await db.insert({ n: 1 }, 'a');
  const b = await db.insert({ n: 2 }, 'b');
  const gone = await db.destroy('b', b.rev);
  const { total_rows, rows } = await db.fetch({ keys: ['b', 'x', 'a', 'a'] });
  assert.equal(total_rows, 1);
  const found = { id: 'a', key: 'a', value: { rev: a.rev }, doc: { _id: 'a', _rev: a.rev, n: 1 } };
  assert.deepEqual(rows, [
    { id: 'b', key: 'b', value: { rev: gone.rev, deleted: true }, doc: null },
    { key: 'x', error: 'not_found' },
    found,
    found,
  ]);
});

test('a list has a range, a direction, a limit and an offset', async () => {
  const db = await newDatabase();
  const ids = Array.from({ length: 20 }, (_, n) => `d${String(n).padStart(2, '0')}`);
  await db.bulk({ docs: ids.map((_id, n) => ({ _id, n })) });
  const list = async (query) => {
    const { rows, offset, total_rows } = await db.list(query);
    assert.equal(total_rows, 20);
    return { ids: rows.map((row) => row.id), offset };
  };
  assert.deepEqual(await list({}), { ids, offset: 0 });
  assert.deepEqual(await list({ startkey: 'd05', endkey: 'd07' }), { ids: ['d05', 'd06', 'd07'], offset: 5 });
  assert.deepEqual((await list({ startkey: 'd05', endkey: 'd07', inclusive_end: false })).ids, ['d05', 'd06']);
  assert.deepEqual(await list({ limit: 2, skip: 3 }), { ids: ['d03', 'd04'], offset: 3 });
  assert.deepEqual(await list({ descending: true, limit: 2 }), { ids: ['d19', 'd18'], offset: 0 });
  assert.deepEqual((await list({ descending: true, startkey: 'd07', endkey: 'd05' })).ids, ['d07', 'd06', 'd05']);
  assert.deepEqual((await list({ key: 'd09' })).ids, ['d09']);
  assert.deepEqual((await list({ limit: 0 })).ids, []);
  assert.deepEqual((await list({ startkey: 'e' })).ids, []);
  const withDocs = await db.list({ include_docs: true, key: 'd09' });
  assert.equal(withDocs.rows[0].doc.n, 9);
});

test('changes list each document once, in order, from the requested position', async () => {
  const db = await newDatabase();
  const a = await db.insert({ n: 1 }, 'a');
  const b = await db.insert({ n: 1 }, 'b');
  const a2 = await db.insert({ _rev: a.rev, n: 2 }, 'a');
  const gone = await db.destroy('b', b.rev);

  const all = await db.changes({ since: 0, include_docs: true });
  assert.deepEqual(all.results.map(({ id, changes, deleted }) => ({ id, changes, deleted })), [
    { id: 'a', changes: [{ rev: a2.rev }], deleted: undefined },
    { id: 'b', changes: [{ rev: gone.rev }], deleted: true },
  ]);
  assert.equal(all.pending, 0);
  assert.equal(all.results[0].doc.n, 2);
  assert.equal(all.last_seq, all.results[1].seq);
  assert.equal(all.last_seq, (await db.info()).update_seq);

  const first = await db.changes({ since: 0, limit: 1 });
  assert.equal(first.pending, 1);
  const rest = await db.changes({ since: first.last_seq });
  assert.deepEqual(rest.results.map((change) => change.id), ['b']);
  assert.deepEqual((await db.changes({ since: 'now' })).results, []);
  const newestFirst = await db.changes({ descending: true });
  assert.deepEqual(newestFirst.results.map((change) => change.id), ['b', 'a']);
});

test('a long poll returns with the next change', async () => {
  const db = await newDatabase();
  await db.insert({ n: 1 }, 'a');
  const { last_seq } = await db.changes({ since: 0 });
  const polled = db.changes({ feed: 'longpoll', since: last_seq });
  await db.insert({ n: 1 }, 'b');
  assert.deepEqual((await polled).results.map((change) => change.id), ['b']);
  const empty = await db.changes({ feed: 'longpoll', since: 'now', timeout: 1 });
  assert.deepEqual(empty.results, []);
});

test('a continuous feed sends one line per change, and heartbeats between them', async () => {
  const db = await newDatabase();
  await db.insert({ n: 1 }, 'a');
  const feed = db.changesAsStream({ feed: 'continuous', since: 0, heartbeat: 50 });
  let text = '';
  feed.on('data', (chunk) => (text += chunk));
  const ids = () => text.split('\n').slice(0, -1).filter(Boolean).map((line) => JSON.parse(line).id);
  await until('the first change', () => ids().length === 1);
  await db.insert({ n: 1 }, 'b');
  await until('the second change', () => ids().length === 2);
  assert.deepEqual(ids(), ['a', 'b']);
  await until('a heartbeat', () => text.endsWith('\n\n'));
  await couch.db.destroy(db.config.db);
  await until('the end of the feed', () => feed.readableEnded);
});

test('nano\'s changes reader reads to the end, and then follows', async () => {
  const db = await newDatabase();
  const ids = Array.from({ length: 25 }, (_, n) => `d${n}`);
  await db.bulk({ docs: ids.map((_id) => ({ _id })) });
  const found = [];
  const reading = db.changesReader.get({ since: 0, batchSize: 10, timeout: 50 });
  reading.on('change', (change) => found.push(change.id));
  await nextEvent(reading, 'end');
  assert.deepEqual(found, ids);

  const following = db.changesReader.start({ since: 'now', includeDocs: true });
  const change = nextEvent(following, 'change');
  // `now` is the time at which the request arrives, which the reader doesn't report.
  let inserted = 0;
  const seen = change.then(() => true);
  while (!(await Promise.race([seen, db.insert({ n: (inserted += 1) }).then(() => false)])));
  // Stopping it aborts the poll that waits.
  following.on('error', () => {});
  db.changesReader.stop();
  assert.ok((await change).doc.n <= inserted);
});

test('_uuids returns as many uuids as requested, all different', async () => {
  const { uuids } = await couch.uuids(50);
  assert.equal(new Set(uuids).size, 50);
  assert.ok(uuids.every((uuid) => /^[0-9a-f]{32}$/.test(uuid)));
});

test('revisions, their history and their conflicts can be read', async () => {
  const db = await newDatabase();
  const first = await db.insert({ n: 1 }, 'a');
  const second = await db.insert({ _rev: first.rev, n: 2 }, 'a');
  const other = '2-ffffffffffffffffffffffffffffffff';
  const start = first.rev.slice(2);
  const replicated = await db.bulk({
    new_edits: false,
    docs: [{ _id: 'a', _rev: other, n: 3, _revisions: { start: 2, ids: [other.slice(2), start] } }],
  });
  assert.deepEqual(replicated, []);
  const winner = [second.rev, other].sort().at(-1);
  const loser = [second.rev, other].sort()[0];
  const found = await db.get('a', { conflicts: true, revs: true, revs_info: true });
  assert.equal(found._rev, winner);
  assert.deepEqual(found._conflicts, [loser]);
  assert.deepEqual(found._revisions, { start: 2, ids: [winner.slice(2), start] });
  assert.deepEqual(found._revs_info, [
    { rev: winner, status: 'available' },
    { rev: first.rev, status: 'available' },
  ]);
  assert.deepEqual(await db.get('a', { rev: first.rev }), { _id: 'a', _rev: first.rev, n: 1 });
  assert.equal((await db.get('a', { rev: loser }))._rev, loser);
  const leaves = await db.get('a', { open_revs: 'all' });
  assert.equal(leaves.length, 2);
});

test('without an administrator every client on this machine has all permissions', async () => {
  const session = await couch.session();
  assert.equal(session.ok, true);
  assert.deepEqual(session.userCtx, { name: null, roles: ['_admin'] });
});
