// Goal: PouchDB's `query()` over HTTP returns what CouchDB returns, and its replication and change feeds honour
// filter functions, filter views and `validate_doc_update`.
// Method: the design documents and city documents are replicated to PouchDB's memory adapter, which evaluates
// the same functions itself; both sides must return the same rows. Keys are ASCII of one case, which both order
// alike; numbers are integers, whose sums have no rounding errors, and positive in keys, since PouchDB's own index
// keeps negative ones inexactly.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { cityDocuments } from './lib/cities.js';
import { newLocal, PouchDB } from './lib/pouch.js';
import { killAll, nextEvent, Server, until } from './lib/settee.js';

const CITY_COUNT = 600;

const documents = cityDocuments(CITY_COUNT).map((city) => ({
  ...city,
  lat: Math.round(Number(city.lat)) + 90,
  lng: Math.round(Number(city.lng)),
}));

const perCountry = 'function (doc) { if (doc.country) emit([doc.country, doc.lat], doc.lng); }';

const design = {
  _id: '_design/cities',
  views: {
    by_lat: { map: 'function (doc) { if (doc.country) emit(doc.lat, doc.country); }' },
    count: { map: perCountry, reduce: '_count' },
    sum: { map: perCountry, reduce: '_sum' },
    stats: { map: perCountry, reduce: '_stats' },
    northmost: {
      map: 'function (doc) { if (doc.country) emit(doc.country, doc.lat); }',
      reduce: 'function (keys, values, rereduce) { return Math.max.apply(null, values); }',
    },
  },
};

let server;
let remoteCount = 0;

before(async () => {
  server = await Server.start();
});

after(() => server?.stop());
after(killAll);

/** A new database on the server with `docs`. */
async function newRemote(docs = []) {
  const remote = new PouchDB(`${server.url}/views-${(remoteCount += 1)}`);
  for (const row of await remote.bulkDocs(docs)) assert.ok(row.ok, JSON.stringify(row));
  return remote;
}

/** Checks the status, error and reason with which a call is refused. */
const refused = (promise, status, error, reason) => assert.rejects(promise, { status, error, reason });

const ids = ({ rows }) => rows.map((row) => row.id);

test('queries of maps return the rows that PouchDB computes', async () => {
  const remote = await newRemote([...documents, design]);
  const local = newLocal();
  await PouchDB.replicate(remote, local);
  for (const options of [
    {},
    { include_docs: true, limit: 20 },
    { key: 138 },
    { key: 1000 },
    { startkey: 130, endkey: 140 },
    { start_key: 130, end_key: 140 },
    { startkey: 130, endkey: 140, inclusive_end: false },
    { startkey: 140, endkey: 130, descending: true },
    { startkey: 130, limit: 7, skip: 5 },
    { descending: true, limit: 10 },
    { limit: 0 },
    { keys: [138, 1000, 102, 87] },
    { keys: [138], limit: 2 },
    { startkey: null, endkey: {} },
  ]) {
    const here = await remote.query('cities/by_lat', options);
    const there = await local.query('cities/by_lat', options);
    assert.deepEqual(here.rows, there.rows, JSON.stringify(options));
    assert.equal(here.total_rows, CITY_COUNT);
    if (here.rows.length === 0 || options.keys) continue;
    const all = await remote.query('cities/by_lat', { descending: options.descending });
    assert.equal(all.rows[here.offset].id, here.rows[0].id, JSON.stringify(options));
  }
  // Beyond 2,000 characters PouchDB sends the keys in a body.
  const many = { keys: Array.from({ length: 1000 }, (_, n) => n) };
  assert.deepEqual((await remote.query('cities/by_lat', many)).rows, (await local.query('cities/by_lat', many)).rows);
});

test('queries of reductions return the rows that PouchDB computes', async () => {
  const remote = await newRemote([...documents, design]);
  const local = newLocal();
  await PouchDB.replicate(remote, local);
  const countries = [...new Set(documents.map(({ country }) => country))].sort();
  const [some] = countries;
  for (const [view, all] of [
    ['count', [{}, { reduce: false, limit: 20 }]],
    ['sum', [{}]],
    ['stats', [{}]],
    ['northmost', [{}]],
  ]) {
    const inRange = view === 'northmost' ? { startkey: 'C', endkey: 'G' } : { startkey: ['C'], endkey: ['G', {}] };
    const none = view === 'northmost' ? { key: 'ZZZ' } : { startkey: ['ZZZ'] };
    const levels = view === 'northmost' ? [] : [{ group_level: 1 }, { group_level: 2, limit: 10, skip: 3 }];
    const keys = view === 'northmost' ? [some, 'ZZZ', countries[5]] : [[documents[9].country, documents[9].lat], ['ZZZ', 0]];
    for (const options of [
      ...all,
      ...levels,
      inRange,
      none,
      { ...none, group: true },
      { group: true },
      { group: true, descending: true, limit: 5 },
      { ...inRange, group: true, skip: 2 },
      { group: true, keys },
      { reduce: true },
    ]) {
      const here = await remote.query(`cities/${view}`, options);
      const there = await local.query(`cities/${view}`, options);
      assert.deepEqual(here.rows, there.rows, `${view} ${JSON.stringify(options)}`);
    }
  }
  const { rows } = await remote.query('cities/northmost', { group: true });
  assert.deepEqual(rows.map(({ key }) => key), countries);
});

test('a view named as its design document needs no slash', async () => {
  const remote = await newRemote([
    { _id: 'a', n: 1 },
    { _id: '_design/numbers', views: { numbers: { map: 'function (doc) { emit(doc.n); }' } } },
  ]);
  assert.deepEqual((await remote.query('numbers')).rows, [{ id: 'a', key: 1, value: null }]);
});

test('rows have linked documents', async () => {
  const remote = await newRemote([
    { _id: 'france', name: 'France' },
    { _id: 'lyon', in: 'france' },
    { _id: 'nowhere', in: 'atlantis' },
    { _id: 'gone', in: 'ghost' },
    { _id: 'ghost' },
    { _id: '_design/d', views: { in: { map: 'function (doc) { if (doc.in) emit(doc._id, { _id: doc.in }); }' } } },
  ]);
  await remote.remove(await remote.get('ghost'));
  const { rows } = await remote.query('d/in', { include_docs: true });
  assert.deepEqual(rows.map(({ id, value, doc }) => [id, value, doc && doc.name]), [
    ['gone', { _id: 'ghost' }, null],
    ['lyon', { _id: 'france' }, 'France'],
    ['nowhere', { _id: 'atlantis' }, null],
  ]);
});

test('documents of rows have their attachments and conflicts', async () => {
  const remote = await newRemote([
    { _id: '_design/d', views: { all: { map: 'function (doc) { emit(doc._id); }' } } },
  ]);
  const data = Buffer.from('hello').toString('base64');
  const _attachments = { 'a.txt': { content_type: 'text/plain', data } };
  await remote.bulkDocs(
    [
      { _id: 'a', _rev: `1-${'a'.repeat(32)}` },
      { _id: 'a', _rev: `1-${'b'.repeat(32)}`, _attachments },
    ],
    { new_edits: false },
  );
  const read = async (options) => (await remote.query('d/all', { include_docs: true, ...options })).rows[0].doc;
  assert.equal((await read({}))._attachments['a.txt'].stub, true);
  assert.equal((await read({ attachments: true }))._attachments['a.txt'].data, data);
  const binary = await read({ attachments: true, binary: true });
  assert.equal(binary._attachments['a.txt'].data.toString(), 'hello');
  assert.deepEqual((await read({ conflicts: true }))._conflicts, [`1-${'a'.repeat(32)}`]);
  assert.equal((await read({}))._conflicts, undefined);
});

test('rows follow edits, deletions and changed functions', async () => {
  const remote = await newRemote([
    { _id: 'a', n: 1 },
    { _id: 'b', n: 2 },
    { _id: '_design/d', views: { n: { map: 'function (doc) { emit(doc.n); }' } } },
  ]);
  assert.deepEqual(ids(await remote.query('d/n')), ['a', 'b']);
  const fresh = await remote.query('d/n', { update_seq: true });
  assert.equal(fresh.update_seq, (await remote.info()).update_seq);
  assert.deepEqual(ids(await remote.query('d/n', { stale: 'ok' })), ['a', 'b']);
  await remote.put({ ...(await remote.get('a')), n: 3 });
  await remote.put({ _id: 'c', n: 0 });
  assert.deepEqual(ids(await remote.query('d/n')), ['c', 'b', 'a']);
  await remote.remove(await remote.get('b'));
  const { rows, total_rows } = await remote.query('d/n');
  assert.deepEqual([rows.map(({ id }) => id), total_rows], [['c', 'a'], 2]);
  const changed = await remote.get('_design/d');
  changed.views.n.map = 'function (doc) { emit(-doc.n); }';
  await remote.put(changed);
  assert.deepEqual((await remote.query('d/n')).rows.map(({ id, key }) => [id, key]), [['a', -3], ['c', 0]]);
});

test('indexes of deleted design documents are cleaned up', async () => {
  const remote = await newRemote([{ _id: 'a' }, design]);
  await remote.query('cities/by_lat');
  assert.deepEqual(await remote.viewCleanup(), { ok: true });
  assert.deepEqual((await remote.query('cities/by_lat')).rows, []);
  await remote.remove(await remote.get('_design/cities'));
  assert.deepEqual(await remote.viewCleanup(), { ok: true });
  await refused(remote.query('cities/by_lat'), 404, 'not_found', 'deleted');
});

test('queries are refused as in CouchDB', async () => {
  const remote = await newRemote([{ _id: 'a', country: 'AD', lat: 'far', lng: 'east' }, design]);
  await refused(remote.query('cities/nothing'), 404, 'not_found', 'missing_named_view');
  await refused(remote.query('nothing/by_lat'), 404, 'not_found', 'missing');
  const parse = (view, options, reason) => refused(remote.query(view, options), 400, 'query_parse_error', reason);
  await parse(
    'cities/by_lat',
    { startkey: 2, endkey: 1 },
    'No rows can match your key range, reverse your start_key and end_key or set descending=true',
  );
  await parse('cities/by_lat', { reduce: true }, 'Reduce is invalid for map-only views.');
  await parse('cities/by_lat', { group: true }, 'Invalid use of grouping on a map view.');
  await parse('cities/count', { include_docs: true }, '`include_docs` is invalid for reduce');
  await parse('cities/count', { keys: [1, 2] }, 'Multi-key fetches for reduce views must use `group=true`');
  await parse('cities/by_lat', { limit: -1 }, 'Invalid value for positive integer: "-1"');
  await parse(
    'cities/by_lat',
    { keys: [1, 2], key: 1 },
    '`keys` is incompatible with `key`, `start_key` and `end_key`',
  );
  await refused(
    remote.query({ map: 'function (doc) { emit(doc._id); }' }),
    410,
    'gone',
    'Temporary views are not supported in CouchDB',
  );
  // PouchDB finds the error of `_sum` in the value of a row.
  const { rows } = await server.expect(200, 'GET', `/${remote.name.split('/').at(-1)}/_design/cities/_view/sum`);
  assert.equal(rows[0].value.error, 'builtin_reduce_error');
  await assert.rejects(remote.query('cities/sum'));
});

test('replication sends what a filter function passes', async () => {
  const filters = {
    country: 'function (doc, req) { return doc.country === req.query.country || doc._deleted; }',
    broken: 'function (doc) { throw new Error("broken"); }',
  };
  const remote = await newRemote([...documents, { _id: '_design/d', filters }]);
  const [first] = documents;
  const chosen = documents.filter(({ country }) => country === first.country).map(({ _id }) => _id).sort();
  const local = newLocal();
  const options = { filter: 'd/country', query_params: { country: first.country } };
  const result = await PouchDB.replicate(remote, local, options);
  assert.equal(result.docs_written, chosen.length);
  assert.deepEqual(ids(await local.allDocs()).sort(), chosen);
  await remote.remove(await remote.get(first._id));
  assert.equal((await PouchDB.replicate(remote, local, options)).docs_written, 1);
  await assert.rejects(local.get(first._id), { status: 404, reason: 'deleted' });
  const other = newLocal();
  await refused(remote.changes({ filter: 'd/none' }), 404, 'not_found', 'missing json key: none');
  await assert.rejects(PouchDB.replicate(remote, other, { filter: 'd/broken' }));
  assert.equal((await other.info()).doc_count, 0);
});

test('replication sends what a view emits', async () => {
  const north = 'function (doc) { if (doc.lat > 140) emit(doc._id); }';
  const remote = await newRemote([...documents, { _id: '_design/d', views: { north: { map: north } } }]);
  const local = newLocal();
  await PouchDB.replicate(remote, local, { filter: '_view', view: 'd/north' });
  const chosen = documents.filter(({ lat }) => lat > 140).map(({ _id }) => _id).sort();
  assert.deepEqual(ids(await local.allDocs()).sort(), chosen);
});

test('a live feed sends only what its filter function passes', async () => {
  const even = 'function (doc, req) { return doc.n % Number(req.query.by) === 0; }';
  const remote = await newRemote([{ _id: '_design/d', filters: { multiple: even } }]);
  const feed = remote.changes({ since: 'now', live: true, include_docs: true, filter: 'd/multiple', query_params: { by: 3 } });
  const found = [];
  feed.on('change', ({ doc }) => found.push(doc.n));
  try {
    // `now` is the time at which the request arrives.
    let n = 0;
    await until('the first change', async () => {
      await remote.put({ _id: `${n}`, n });
      n += 1;
      return found.length > 0;
    });
    const end = nextEvent(feed, 'change');
    await remote.put({ _id: 'end', n: 3000 });
    await end;
    await until('the last change', () => found.at(-1) === 3000);
    assert.ok(found.every((value) => value % 3 === 0), `${found}`);
  } finally {
    feed.cancel();
  }
});

test('a write that validation refuses has the function\'s status and reason', async () => {
  const validate = `function (newDoc, oldDoc, userCtx, secObj) {
    if (newDoc._deleted) { if (oldDoc.kept) throw { forbidden: 'It is kept.' }; return; }
    if (!newDoc.name) throw { forbidden: 'A name is required.' };
    if (newDoc.name === 'secret') throw { unauthorized: 'It is secret.' };
    if (oldDoc && oldDoc.name !== newDoc.name) throw { forbidden: 'A name is for ever.' };
  }`;
  const remote = await newRemote([{ _id: '_design/d', validate_doc_update: validate }]);
  await refused(remote.put({ _id: 'a' }), 403, 'forbidden', 'A name is required.');
  await refused(remote.put({ _id: 'a', name: 'secret' }), 401, 'unauthorized', 'It is secret.');
  const { rev } = await remote.put({ _id: 'a', name: 'Ulm', kept: true });
  await refused(remote.put({ _id: 'a', _rev: rev, name: 'Bern' }), 403, 'forbidden', 'A name is for ever.');
  await refused(remote.remove('a', rev), 403, 'forbidden', 'It is kept.');
  const rows = await remote.bulkDocs([{ _id: 'b', name: 'Bern' }, { _id: 'c' }, { _id: 'd', name: 'secret' }]);
  assert.equal(rows[0].ok, true);
  assert.deepEqual(rows.slice(1).map(({ id, error, reason }) => ({ id, error, reason })), [
    { id: 'c', error: 'forbidden', reason: 'A name is required.' },
    { id: 'd', error: 'unauthorized', reason: 'It is secret.' },
  ]);
  assert.deepEqual(ids(await remote.allDocs()), ['_design/d', 'a', 'b']);
});

test('replication reports the documents that validation refuses, and writes the others', async () => {
  const validate = 'function (newDoc) { if (!newDoc.name) throw { forbidden: "A name is required." }; }';
  const remote = await newRemote([{ _id: '_design/d', validate_doc_update: validate }]);
  const local = newLocal();
  await local.bulkDocs([{ _id: 'a', name: 'Ulm' }, { _id: 'b' }, { _id: 'c', name: 'Bern' }]);
  const denied = [];
  const replication = PouchDB.replicate(local, remote);
  replication.on('denied', ({ id, reason }) => denied.push(`${id}: ${reason}`));
  const { docs_written, doc_write_failures } = await replication;
  assert.deepEqual({ docs_written, doc_write_failures }, { docs_written: 2, doc_write_failures: 1 });
  assert.deepEqual(denied, ['b: A name is required.']);
  assert.deepEqual(ids(await remote.allDocs()), ['_design/d', 'a', 'c']);
});
