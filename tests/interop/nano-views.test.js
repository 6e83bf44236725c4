// Goal: `nano`, CouchDB's client for Node, queries views, runs design functions and finds documents as with CouchDB.
// Method: each of its calls for them, against one server, with a new database for each test. The expected values
// follow from the documents or were seen on CouchDB 3.5.0.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import nano from 'nano';
import { Server } from './lib/settee.js';

let server;
let couch;
let databaseCount = 0;

before(async () => {
  server = await Server.start();
  couch = nano(server.url);
});

after(() => server?.stop());

/** A new database with `docs`. */
async function newDatabase(docs, options) {
  const name = `nano-views-${(databaseCount += 1)}`;
  await couch.db.create(name, options);
  const db = couch.use(name);
  for (const row of await db.bulk({ docs })) assert.ok(row.ok, JSON.stringify(row));
  return db;
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

/** Reads a stream of one JSON value to its end. */
async function readJson(stream) {
  let text = '';
  for await (const chunk of stream.setEncoding('utf8')) text += chunk;
  return JSON.parse(text);
}

const ids = ({ rows }) => rows.map(({ id }) => id);

const cities = [
  { _id: 'bern', country: 'CH', people: 134 },
  { _id: 'bonn', country: 'DE', people: 336 },
  { _id: 'chur', country: 'CH', people: 38 },
  { _id: 'ulm', country: 'DE', people: 126 },
];

// nano sends functions as their source.
const design = {
  _id: '_design/d',
  views: {
    by_people: { map: (doc) => emit(doc.people, doc.country) },
    people: { map: (doc) => emit([doc.country, doc._id], doc.people), reduce: '_sum' },
  },
};

test('a view is queried by range, key, keys, group and page', async () => {
  const db = await newDatabase([...cities, design]);
  assert.deepEqual(await db.view('d', 'by_people', { startkey: 100, endkey: 200 }), {
    total_rows: 4,
    offset: 1,
    rows: [
      { id: 'ulm', key: 126, value: 'DE' },
      { id: 'bern', key: 134, value: 'CH' },
    ],
  });
  assert.deepEqual(ids(await db.view('d', 'by_people')), ['chur', 'ulm', 'bern', 'bonn']);
  assert.deepEqual(ids(await db.view('d', 'by_people', { descending: true, limit: 2, skip: 1 })), ['bern', 'ulm']);
  assert.deepEqual(ids(await db.view('d', 'by_people', { key: 38 })), ['chur']);
  const { rows } = await db.view('d', 'by_people', { keys: [336, 1, 38], include_docs: true });
  assert.deepEqual(rows.map(({ doc }) => doc._id), ['bonn', 'chur']);
  assert.deepEqual(await db.view('d', 'people'), { rows: [{ key: null, value: 634 }] });
  assert.deepEqual((await db.view('d', 'people', { group_level: 1 })).rows, [
    { key: ['CH'], value: 172 },
    { key: ['DE'], value: 462 },
  ]);
  assert.deepEqual((await db.view('d', 'people', { group: true, startkey: ['D'], limit: 1 })).rows, [
    { key: ['DE', 'bonn'], value: 336 },
  ]);
  assert.deepEqual(ids(await db.view('d', 'people', { reduce: false, start_key: ['CH'], end_key: ['CH', {}] })), [
    'bern',
    'chur',
  ]);
  assert.deepEqual(ids(await readJson(db.viewAsStream('d', 'by_people', { limit: 1 }))), ['chur']);
});

test('several queries of a view are one request, to an endpoint of their own', async () => {
  const db = await newDatabase([...cities, design]);
  const queries = [{ key: 38 }, { startkey: 130, limit: 1 }, { keys: [336, 126] }];
  const { results } = await db.view('d', 'by_people/queries', { queries });
  assert.deepEqual(results.map(ids), [['chur'], ['bern'], ['bonn', 'ulm']]);
  await refused(
    db.view('d', 'by_people', { queries }),
    400,
    'bad_request',
    'The `queries` parameter is no longer supported at this endpoint',
  );
});

test('a view that does not exist is not found, and a broken one is not stored', async () => {
  const db = await newDatabase([design]);
  await refused(db.view('d', 'none'), 404, 'not_found', 'missing_named_view');
  await refused(db.view('none', 'none'), 404, 'not_found', 'missing');
  await refused(
    db.view('d', 'by_people', { group: true }),
    400,
    'query_parse_error',
    'Invalid use of grouping on a map view.',
  );
  await refused(
    db.insert({ views: { a: { map: 'function (doc) {}', reduce: '_total' } } }, '_design/e'),
    400,
    'invalid_design_doc',
    '`_total` is not a supported reduce function.',
  );
  await assert.rejects(db.insert({ views: { a: { map: 'function (' } } }, '_design/e'), {
    statusCode: 400,
    error: 'compilation_error',
  });
});

test('a design document describes its index, which is compacted on request', async () => {
  const db = await newDatabase([...cities, design]);
  await db.view('d', 'by_people');
  const { name, view_index } = await couch.relax({ db: db.config.db, path: '_design/d/_info' });
  assert.equal(name, 'd');
  assert.match(view_index.signature, /^[0-9a-f]{32}$/);
  assert.deepEqual([view_index.language, view_index.updater_running], ['javascript', false]);
  assert.deepEqual(view_index.updates_pending, { minimum: 0, preferred: 0, total: 0 });
  assert.ok(view_index.sizes.file > 0 && view_index.sizes.active > 0, JSON.stringify(view_index.sizes));
  assert.deepEqual(await db.view.compact('d'), { ok: true });
  await refused(db.view.compact('none'), 404, 'not_found', 'missing');
  assert.equal((await db.view('d', 'by_people')).total_rows, 4);
});

test('a show function renders a document, or its absence', async () => {
  const shows = {
    card: `function (doc, req) {
      return doc ? '<h1>' + doc._id + ' ' + (req.query.mark || '') + '</h1>' : { code: 404, body: 'no ' + req.id };
    }`,
    data: 'function (doc) { return { json: { people: doc.people }, headers: { "X-Country": doc.country } }; }',
    broken: 'function (doc) { throw ["error", "too_small", "A village."]; }',
  };
  const db = await newDatabase([...cities, { _id: '_design/d', shows }]);
  assert.equal(await db.show('d', 'card', 'ulm'), '<h1>ulm </h1>');
  assert.equal(await db.show('d', 'card', 'ulm', { mark: '!' }), '<h1>ulm !</h1>');
  assert.deepEqual(await db.show('d', 'data', 'ulm'), { people: 126 });
  await assert.rejects(db.show('d', 'card', 'york'), { statusCode: 404 });
  await refused(db.show('d', 'broken', 'ulm'), 500, 'too_small', 'A village.');
  const path = `/${db.config.db}/_design/d/_show/data/ulm`;
  const { status, headers } = await server.request('GET', path);
  assert.deepEqual([status, headers.get('x-country'), headers.get('vary')], [200, 'DE', 'Accept']);
  const again = await server.request('GET', path, undefined, { 'if-none-match': headers.get('etag') });
  assert.equal(again.status, 304);
});

test('a list function renders the rows of a view', async () => {
  const lists = {
    text: `function (head, req) {
      start({ headers: { 'Content-Type': 'text/plain' } });
      send(head.total_rows + ' rows\\n');
      for (var row; (row = getRow()); ) send(row.id + ': ' + row.key + '\\n');
      return req.query.end || 'end';
    }`,
    json: `function () {
      provides('html', function () { return '<p>'; });
      provides('json', function () {
        var rows = [];
        for (var row; (row = getRow()); ) rows.push(row.value);
        return toJSON({ rows: rows });
      });
    }`,
  };
  const db = await newDatabase([...cities, { ...design, lists }]);
  assert.equal(await db.viewWithList('d', 'by_people', 'text', { startkey: 130 }), '4 rows\nbern: 134\nbonn: 336\nend');
  assert.equal(await db.viewWithList('d', 'by_people', 'text', { limit: 0, end: 'fin' }), '4 rows\nfin');
  assert.deepEqual(await db.viewWithList('d', 'people', 'json', { group_level: 1 }), { rows: [172, 462] });
  let text = '';
  for await (const chunk of db.viewWithListAsStream('d', 'by_people', 'text', { limit: 1 })) text += chunk;
  assert.equal(text, '4 rows\nchur: 38\nend');
  await refused(db.viewWithList('d', 'by_people', 'none'), 404, 'not_found', 'missing json key: none');
  await refused(db.viewWithList('d', 'none', 'text'), 404, 'not_found', 'missing_named_view');
});

test('an update function creates, edits or leaves a document', async () => {
  const updates = {
    set: `function (doc, req) {
      var body = JSON.parse(req.body);
      if (!doc) return [{ _id: req.id, people: body.people }, 'made ' + req.id];
      if (doc.people === body.people) return [null, { json: { unchanged: doc._id } }];
      doc.people = body.people;
      return [doc, toJSON({ people: doc.people })];
    }`,
    broken: 'function (doc) { throw new Error("broken"); }',
  };
  const db = await newDatabase([...cities, { _id: '_design/d', updates }]);
  assert.equal(await db.atomic('d', 'set', 'a/b', { people: 7 }), 'made a/b');
  assert.equal((await db.get('a/b')).people, 7);
  assert.deepEqual(await db.atomic('d', 'set', 'a/b', { people: 7 }), { unchanged: 'a/b' });
  await db.updateWithHandler('d', 'set', 'ulm', { people: 127 });
  const { _rev, people } = await db.get('ulm');
  assert.deepEqual([_rev.slice(0, 2), people], ['2-', 127]);
  await assert.rejects(db.atomic('d', 'broken', 'ulm', {}), { statusCode: 500 });
  await refused(db.atomic('d', 'none', 'ulm', {}), 404, 'not_found', 'missing json key: none');
});

test('validation refuses a write of nano with its reason', async () => {
  const validate_doc_update = (newDoc) => {
    if (newDoc.people < 0) throw { forbidden: 'Nobody is the least.' };
    if (newDoc.people > 1e6) throw { unauthorized: 'Too many.' };
  };
  const db = await newDatabase([{ _id: '_design/d', validate_doc_update }]);
  assert.equal((await db.insert({ people: 0 }, 'a')).ok, true);
  await refused(db.insert({ people: -1 }, 'b'), 403, 'forbidden', 'Nobody is the least.');
  await refused(db.insert({ people: 2e6 }, 'b'), 401, 'unauthorized', 'Too many.');
  const rows = await db.bulk({ docs: [{ _id: 'b', people: -1 }, { _id: 'c', people: 3 }] });
  assert.deepEqual(rows[0], { id: 'b', error: 'forbidden', reason: 'Nobody is the least.' });
  assert.equal(rows[1].ok, true);
});

test('changes are filtered by a function and by a selector', async () => {
  const filters = { country: (doc, req) => doc.country === req.query.country };
  const db = await newDatabase([...cities, { _id: '_design/d', filters }]);
  const found = ({ results }) => results.map(({ id }) => id);
  assert.deepEqual(found(await db.changes({ filter: 'd/country', country: 'CH' })), ['bern', 'chur']);
  const { url, db: name } = db.config;
  assert.equal(url, server.url);
  const selected = await couch.relax({
    db: name,
    path: '_changes',
    qs: { filter: '_selector' },
    method: 'POST',
    body: { selector: { people: { $gt: 130 } } },
  });
  assert.deepEqual(found(selected), ['bern', 'bonn']);
});

test('documents are found through an index, sorted, in pages', async () => {
  const db = await newDatabase(cities);
  const index = { index: { fields: ['country', 'people'] }, ddoc: 'i', name: 'by-country', type: 'json' };
  assert.deepEqual(await db.createIndex(index), { result: 'created', id: '_design/i', name: 'by-country' });
  assert.equal((await db.createIndex(index)).result, 'exists');
  const query = { selector: { country: { $gt: null } }, sort: ['country', 'people'], fields: ['_id'], limit: 3 };
  const { docs, bookmark, warning } = await db.find(query);
  assert.deepEqual(docs.map(({ _id }) => _id), ['chur', 'bern', 'ulm']);
  assert.equal(warning, undefined);
  assert.deepEqual((await db.find({ ...query, bookmark })).docs, [{ _id: 'bonn' }]);
  const streamed = await readJson(db.findAsStream({ selector: { people: { $lt: 100 } } }));
  assert.deepEqual(streamed.docs.map(({ _id }) => _id), ['chur']);
  assert.equal(streamed.warning, 'No matching index found, create an index to optimize query time.');
  await refused(db.find({ selector: { a: { $no: 1 } } }), 400, 'invalid_operator', 'Invalid operator: $no');
});

test('a partition has its own view, search and information', async () => {
  const docs = cities.map(({ _id, country, people }) => ({ _id: `${country}:${_id}`, people }));
  const everywhere = {
    _id: '_design/all',
    options: { partitioned: false },
    views: { by_people: { map: (doc) => emit(doc.people) } },
  };
  const db = await newDatabase([...docs, design, everywhere], { partitioned: true });
  assert.deepEqual(ids(await db.partitionedView('CH', 'd', 'by_people')), ['CH:chur', 'CH:bern']);
  assert.deepEqual(ids(await db.partitionedView('CH', 'd', 'by_people', { startkey: 100 })), ['CH:bern']);
  assert.deepEqual((await db.partitionedView('DE', 'd', 'people')).rows, [{ key: null, value: 462 }]);
  assert.deepEqual(ids(await readJson(db.partitionedViewAsStream('none', 'd', 'by_people'))), []);
  assert.equal((await db.view('all', 'by_people')).rows.length, 4);
  await refused(
    db.view('d', 'by_people'),
    400,
    'query_parse_error',
    '`partition` parameter is mandatory for queries to this view.',
  );
  await refused(
    db.partitionedView('CH', 'all', 'by_people'),
    400,
    'query_parse_error',
    '`partition` parameter is not supported in this design doc',
  );
  const query = { selector: { people: { $gt: 100 } }, fields: ['_id'] };
  assert.deepEqual((await db.partitionedFind('DE', query)).docs, [{ _id: 'DE:bonn' }, { _id: 'DE:ulm' }]);
  await db.createIndex({ index: { fields: ['people'] } });
  const sorted = await readJson(db.partitionedFindAsStream('DE', { ...query, sort: ['people'] }));
  assert.deepEqual(sorted.docs, [{ _id: 'DE:ulm' }, { _id: 'DE:bonn' }]);
  assert.equal((await db.partitionInfo('CH')).doc_count, 2);
  const plain = await newDatabase([design]);
  await refused(plain.partitionedView('CH', 'd', 'by_people'), 400, 'bad_request', 'database is not partitioned');
});
