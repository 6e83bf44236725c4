// Goal: `pouchdb-find` over HTTP creates, lists and deletes indexes and finds documents as with CouchDB.
// Method: the same selectors over the same city documents, on the server and in PouchDB's memory adapter, which
// evaluates them itself: both must find the same documents. The selectors use no operator and no type on which
// PouchDB differs from CouchDB (`$ne` of absent members, order of strings), and those that are limited no `$gt`,
// whose excluded rows PouchDB counts.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { cityDocuments } from './lib/cities.js';
import { newLocal, PouchDB } from './lib/pouch.js';
import { killAll, Server } from './lib/settee.js';

const CITY_COUNT = 400;

const documents = cityDocuments(CITY_COUNT).map(({ name, country, lat, lng, ...city }) => ({
  _id: city._id,
  name,
  country,
  lat: Math.round(Number(lat)) + 90,
  place: { lng: Math.round(Number(lng)) + 180 },
  tags: [country.toLowerCase(), Number(lat) > 0 ? 'north' : 'south'],
  visits: [{ year: 2000 + (name.length % 20), by: 'ann' }, { year: 2010, by: country[0] }],
  ...(name.length % 2 ? { odd: true } : {}),
}));

const NO_INDEX = 'No matching index found, create an index to optimize query time.';

let server;
let remoteCount = 0;

before(async () => {
  server = await Server.start();
});

after(() => server?.stop());
after(killAll);

/** A new database on the server with `docs`. */
async function newRemote(docs) {
  const remote = new PouchDB(`${server.url}/find-${(remoteCount += 1)}`);
  for (const row of await remote.bulkDocs(docs)) assert.ok(row.ok, JSON.stringify(row));
  return remote;
}

/** Checks the status, error and reason with which a call is refused. */
const refused = (promise, status, error, reason) => assert.rejects(promise, { status, error, reason });

const ids = ({ docs }) => docs.map(({ _id }) => _id);

const numbers = Array.from({ length: 30 }, (_, n) => ({ _id: `d${String(n).padStart(2, '0')}`, n, half: Math.floor(n / 2) }));

test('an index is created once, listed, and deleted', async () => {
  const db = await newRemote([{ _id: 'a', n: 1 }]);
  const index = { index: { fields: ['n', { name: 'asc' }] }, ddoc: 'd', name: 'by-n' };
  assert.deepEqual(await db.createIndex(index), { result: 'created', id: '_design/d', name: 'by-n' });
  assert.deepEqual(await db.createIndex(index), { result: 'exists', id: '_design/d', name: 'by-n' });
  const all = { ddoc: null, name: '_all_docs', type: 'special', def: { fields: [{ _id: 'asc' }] } };
  const listed = {
    ddoc: '_design/d',
    name: 'by-n',
    type: 'json',
    partitioned: false,
    def: { fields: [{ n: 'asc' }, { name: 'asc' }] },
  };
  assert.deepEqual(await db.getIndexes(), { total_rows: 2, indexes: [all, listed] });
  const unnamed = await db.createIndex({ index: { fields: ['name'], partial_filter_selector: { n: { $gt: 3 } } } });
  assert.match(unnamed.id, /^_design\/[0-9a-f]{40}$/);
  assert.equal(unnamed.name, unnamed.id.slice('_design/'.length));
  const { indexes } = await db.getIndexes();
  const partial = indexes.find(({ ddoc }) => ddoc === unnamed.id);
  assert.deepEqual(partial.def, { fields: [{ name: 'asc' }], partial_filter_selector: { n: { $gt: 3 } } });
  assert.deepEqual(await db.deleteIndex(listed), { ok: true });
  assert.deepEqual(await db.deleteIndex(partial), { ok: true });
  assert.deepEqual(await db.getIndexes(), { total_rows: 1, indexes: [all] });
  await refused(db.deleteIndex(listed), 404, 'not_found', 'missing');
  assert.deepEqual((await db.allDocs()).rows.map(({ id }) => id), ['a']);
});

test('selectors find the documents that PouchDB finds, with and without an index', async () => {
  const remote = await newRemote(documents);
  const local = newLocal();
  await PouchDB.replicate(remote, local);
  const [{ country, name, _id }] = documents;
  const selectors = [
    { country },
    { country: { $eq: country }, lat: { $gt: 100 } },
    { lat: { $gte: 130, $lt: 140 } },
    { lat: { $lte: 60 } },
    { country: { $in: [country, 'FR', 'none'] } },
    { country: { $nin: [country, 'FR', 'US'] } },
    { $or: [{ country }, { lat: { $gt: 150 } }] },
    { $and: [{ lat: { $gt: 100 } }, { 'place.lng': { $lt: 180 } }] },
    { $nor: [{ country: 'US' }, { lat: { $gt: 100 } }] },
    { country: { $ne: 'US' } },
    { 'place.lng': { $gt: 190 } },
    { place: { lng: { $gt: 190 } } },
    { odd: { $exists: true }, lat: { $gt: 120 } },
    { odd: { $exists: false } },
    { name: { $type: 'string' }, lat: { $mod: [7, 3] } },
    { name: { $regex: '^S.*a$' } },
    { tags: { $all: ['north', 'fr'] } },
    { tags: { $size: 2 }, country: 'FR' },
    { tags: { $elemMatch: { $eq: 'south' } } },
    { tags: { $elemMatch: { $in: ['fr', 'de'] } } },
    { visits: { $elemMatch: { year: { $gt: 2015 }, by: 'ann' } } },
    { visits: { $allMatch: { year: { $lt: 2011 } } } },
    { _id: { $gt: _id, $lt: 'C' } },
    { name, country },
    { country: 'none' },
  ];
  const found = async (db, selector) => ids(await db.find({ selector, limit: CITY_COUNT })).sort();
  const before = [];
  for (const selector of selectors) {
    before.push(await found(remote, selector));
    assert.deepEqual(before.at(-1), await found(local, selector), JSON.stringify(selector));
  }
  // Empty or complete results everywhere would prove nothing.
  assert.ok(before.filter(({ length }) => length > 0 && length < CITY_COUNT).length > 20);
  for (const fields of [['country', 'lat'], ['lat'], ['place.lng'], ['name']]) await remote.createIndex({ index: { fields } });
  for (const [place, selector] of selectors.entries()) {
    assert.deepEqual(await found(remote, selector), before[place], JSON.stringify(selector));
  }
});

test('results are sorted by an index, in both directions', async () => {
  const remote = await newRemote(documents);
  const local = newLocal();
  await PouchDB.replicate(remote, local);
  for (const db of [remote, local]) {
    await db.createIndex({ index: { fields: ['country', 'lat'] } });
    await db.createIndex({ index: { fields: ['lat'] } });
  }
  for (const request of [
    { selector: { lat: { $gte: 100 } }, sort: ['lat'] },
    { selector: { lat: { $gte: 100 } }, sort: [{ lat: 'desc' }] },
    { selector: { country: { $gte: 'F', $lt: 'U' } }, sort: ['country', 'lat'] },
    { selector: { country: { $gt: null } }, sort: [{ country: 'desc' }, { lat: 'desc' }], limit: 20 },
    { selector: { country: 'FR', lat: { $gt: null } }, sort: ['country', 'lat'], fields: ['_id', 'lat'] },
    { selector: { lat: { $gte: 100 } }, sort: ['lat'], limit: 10, skip: 25 },
    { selector: { _id: { $gte: 'C' } }, sort: ['_id'], limit: 10 },
    { selector: { _id: { $gt: null } }, sort: [{ _id: 'desc' }], limit: 10 },
  ]) {
    const here = await remote.find(request);
    assert.deepEqual(here.docs, (await local.find({ ...request })).docs, JSON.stringify(request));
    assert.ok(here.docs.length > 0, JSON.stringify(request));
    const byId = request.sort[0] === '_id' || request.sort[0]._id;
    assert.equal(here.warning, byId ? NO_INDEX : undefined, JSON.stringify(request));
  }
});

test('a page follows another by its bookmark', async () => {
  const db = await newRemote(numbers);
  for (const sort of [undefined, ['n'], [{ n: 'desc' }], ['half', 'n']]) {
    if (sort) await db.createIndex({ index: { fields: sort.map((field) => field.n ? 'n' : field) } });
    const request = { selector: { n: { $gte: 3 }, half: { $gte: 0 } }, sort, limit: 7 };
    const pages = [];
    let bookmark;
    for (let page = 0; page < 6; page++) {
      const { docs, bookmark: next } = await db.find({ ...request, bookmark });
      assert.equal(typeof next, 'string');
      pages.push(docs.map(({ n }) => n));
      bookmark = next;
    }
    const wanted = numbers.slice(3).map(({ n }) => n);
    if (sort?.[0].n) wanted.reverse();
    assert.deepEqual(pages.flat(), wanted, JSON.stringify(sort));
    assert.deepEqual(pages.map(({ length }) => length), [7, 7, 7, 6, 0, 0]);
  }
});

test('a search has 25 results unless a limit is given, and can omit members', async () => {
  const db = await newRemote(numbers);
  assert.equal((await db.find({ selector: { n: { $gte: 0 } } })).docs.length, 25);
  assert.deepEqual((await db.find({ selector: { n: { $gte: 0 } }, limit: 0 })).docs, []);
  const { docs } = await db.find({ selector: { n: 7 }, fields: ['_id', 'half', 'nothing'] });
  assert.deepEqual(docs, [{ _id: 'd07', half: 3 }]);
});

test('a search reports what it examined, and warns if no index helped', async () => {
  const db = await newRemote(numbers);
  const request = { selector: { n: { $lt: 10 } }, execution_stats: true };
  const without = await db.find(request);
  assert.equal(without.warning, NO_INDEX);
  assert.equal(without.execution_stats.total_docs_examined, 30);
  await db.createIndex({ index: { fields: ['n'] }, ddoc: 'd', name: 'by-n' });
  const { warning, execution_stats } = await db.find(request);
  assert.equal(warning, undefined);
  const { execution_time_ms, ...counts } = execution_stats;
  assert.ok(execution_time_ms >= 0);
  assert.deepEqual(counts, {
    total_keys_examined: 10,
    total_docs_examined: 10,
    total_quorum_docs_examined: 0,
    results_returned: 10,
  });
  const other = await db.find({ selector: { half: 3 }, use_index: 'd' });
  assert.match(other.warning, /^_design\/d was not used because it does not contain a valid index for this query\./);
  assert.deepEqual(ids(other), ['d06', 'd07']);
});

test('indexes follow edits and deletions, and a partial index has only what its filter matches', async () => {
  const db = await newRemote(numbers);
  await db.createIndex({ index: { fields: ['n'] } });
  await db.createIndex({ index: { fields: ['n'], partial_filter_selector: { half: { $gt: 10 } } }, ddoc: 'high' });
  const found = async (options) => ids(await db.find({ selector: { n: { $gte: 20 } }, sort: ['n'], ...options }));
  assert.deepEqual(await found(), numbers.slice(20).map(({ _id }) => _id));
  assert.deepEqual(await found({ use_index: 'high' }), numbers.slice(22).map(({ _id }) => _id));
  await db.remove(await db.get('d29'));
  await db.put({ ...(await db.get('d28')), n: -1 });
  await db.put({ ...(await db.get('d03')), n: 28.5 });
  const wanted = [...numbers.slice(20, 28).map(({ _id }) => _id), 'd03'];
  assert.deepEqual(await found(), wanted);
  assert.deepEqual(await found({ use_index: 'high' }), wanted.slice(2, -1));
});

test('an explanation names the index, the range and the options', async () => {
  const db = await newRemote(numbers);
  const request = { selector: { n: { $gt: 4 } }, fields: ['n'], sort: ['n'], limit: 3, skip: 1 };
  await db.createIndex({ index: { fields: ['n'] }, ddoc: 'd', name: 'by-n' });
  const found = await db.explain(request);
  assert.equal(found.dbname, db.name.split('/').at(-1));
  assert.deepEqual(found.index, {
    ddoc: '_design/d',
    name: 'by-n',
    type: 'json',
    partitioned: false,
    def: { fields: [{ n: 'asc' }] },
  });
  assert.deepEqual(found.selector, { n: { $gt: 4 } });
  assert.deepEqual([found.fields, found.limit, found.skip], [['n'], 3, 1]);
  assert.deepEqual([found.opts.sort, found.opts.bookmark, found.opts.use_index], [{ n: 'asc' }, 'nil', []]);
  assert.deepEqual(found.mrargs.start_key, [4]);
  assert.deepEqual(found.mrargs.end_key, ['<MAX>']);
  assert.deepEqual([found.mrargs.direction, found.covering], ['fwd', true]);
  const other = await db.explain({ selector: { half: 1 } });
  assert.equal(other.index.name, '_all_docs');
  const [{ index, analysis }] = other.index_candidates;
  assert.equal(index.name, 'by-n');
  assert.equal(analysis.usable, false);
});

test('searches and indexes are refused as in CouchDB', async () => {
  const db = await newRemote(numbers);
  await refused(
    db.find({ selector: { n: { $gt: 3 } }, sort: ['n'] }),
    400,
    'no_usable_index',
    'No index exists for this sort, try indexing by the sort fields.',
  );
  await refused(db.find({ selector: { n: { $near: 3 } } }), 400, 'not_supported', 'Unsupported operator: $near');
  await refused(db.find({ selector: { n: { $nigh: 3 } } }), 400, 'invalid_operator', 'Invalid operator: $nigh');
  await refused(
    db.find({ selector: {}, sort: [{ n: 'asc' }, { half: 'desc' }] }),
    400,
    'unsupported_mixed_sort',
    'Sorts currently only support a single direction for all fields.',
  );
  await refused(db.find({ selector: {}, foo: 1 }), 400, 'invalid_key', 'Invalid key foo for this request.');
  await refused(db.createIndex({ index: {} }), 400, 'missing_required_key', 'Missing required key: fields');
  await assert.rejects(db.find({ selector: {}, bookmark: 'junk' }), { status: 400, error: 'invalid_bookmark' });
  const text = { index: { fields: ['n'] }, type: 'text' };
  await refused(db.createIndex(text), 503, 'required index service unavailable', 'text');
});
