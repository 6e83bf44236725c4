// Goal: a real data set is loaded and read back unchanged.
// Method: GeoNames' cities, a JSON array of 17 MB without ids, through `settee load` into a
// running server, read back through `nano` and `settee dump`.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import nano from 'nano';
import { CITIES_FILE, cities } from './lib/cities.js';
import { killAll, newDirectory, Server, settee } from './lib/settee.js';

/** Rows of a page when all documents are read back. */
const PAGE_ROWS = 20_000;

const rows = cities();
let server;
let db;

const load = (file, name) => settee(['load', file, '--db', name, '--url', server.url, '--create']);

/** A row's text without the members that the database adds, in a fixed order. */
const canonical = ({ _id, _rev, ...row }) => JSON.stringify(Object.entries(row).sort());

before(async () => {
  server = await Server.start();
  db = nano(server.url).use('cities');
  const loaded = await load(CITIES_FILE, 'cities');
  assert.equal(loaded.code, 0, loaded.stderr);
});

after(() => server?.stop());
after(killAll);

test('every city is stored once, as in the file', async () => {
  assert.equal((await db.info()).doc_count, rows.length);
  const wanted = new Set(rows.map(canonical));
  let page = {};
  do {
    // The last row of a page is the first row of the next.
    const { rows: found } = await db.list({ include_docs: true, limit: PAGE_ROWS + 1, ...page });
    for (const { doc } of found.slice(0, PAGE_ROWS)) {
      assert.ok(wanted.delete(canonical(doc)), `not in the file, or twice: ${JSON.stringify(doc)}`);
    }
    page = found.length > PAGE_ROWS ? { startkey: found[PAGE_ROWS].key } : null;
  } while (page);
  assert.equal(wanted.size, 0, `missing: ${[...wanted].slice(0, 3)}`);
});

test('loading the same file again adds nothing', async () => {
  const earlier = await db.info();
  const again = await load(CITIES_FILE, 'cities');
  assert.equal(again.code, 0, again.stderr);
  const later = await db.info();
  assert.equal(later.doc_count, earlier.doc_count);
  assert.equal(later.update_seq, earlier.update_seq);
});

test('a dump has the loaded documents, one per line', async () => {
  const dumped = await settee(['dump', '--db', 'cities', '--url', server.url]);
  assert.equal(dumped.code, 0, dumped.stderr);
  const lines = dumped.stdout.trimEnd().split('\n');
  assert.equal(lines.length, rows.length);
  const found = new Set(lines.map((line) => canonical(JSON.parse(line))));
  assert.ok(rows.every((row) => found.has(canonical(row))));
});

test('a dump can be loaded into another database', async () => {
  const some = path.join(newDirectory(), 'some.jsonl');
  const dumped = await settee(['dump', '--db', 'cities', '--url', server.url]);
  const lines = dumped.stdout.split('\n').slice(0, 1000);
  writeFileSync(some, lines.join('\n') + '\n');
  const loaded = await load(some, 'again');
  assert.equal(loaded.code, 0, loaded.stderr);
  const list = await nano(server.url).use('again').list();
  const ids = lines.map((line) => JSON.parse(line)._id);
  assert.deepEqual(list.rows.map((row) => row.id), ids);
});

test('a line that is not a document is named, and the command fails', async () => {
  const bad = path.join(newDirectory(), 'bad.jsonl');
  writeFileSync(bad, '{"_id":"a"}\n{"_id":"b"}\n{"_id":}\n{"_id":"d"}\n');
  const loaded = await load(bad, 'bad');
  assert.notEqual(loaded.code, 0);
  assert.match(loaded.stderr, /line 3/);
});

test('a document that exists with different content is not overwritten, and is named', async () => {
  const file = path.join(newDirectory(), 'one.jsonl');
  writeFileSync(file, '{"_id":"a","n":1}\n');
  assert.equal((await load(file, 'kept')).code, 0);
  writeFileSync(file, '{"_id":"b","n":1}\n{"_id":"a","n":2}\n');
  const loaded = await load(file, 'kept');
  assert.notEqual(loaded.code, 0);
  assert.match(loaded.stderr, /line 2/);
  assert.equal((await nano(server.url).use('kept').get('a')).n, 1);
});

test('a missing database is created only with --create', async () => {
  const loaded = await settee(['load', CITIES_FILE, '--db', 'unmade', '--url', server.url]);
  assert.notEqual(loaded.code, 0);
  assert.ok(!(await nano(server.url).db.list()).includes('unmade'));
});

test('load and dump work on a data directory without a server, and are refused while a server uses it', async () => {
  const directory = newDirectory();
  const file = path.join(directory, 'some.json');
  const data = path.join(directory, 'data');
  const some = rows.slice(0, 100).map((row, n) => ({ _id: `city-${String(n).padStart(3, '0')}`, ...row }));
  writeFileSync(file, JSON.stringify(some));
  const local = ['--db', 'some', '--data-dir', data];
  const loaded = await settee(['load', file, ...local, '--create']);
  assert.equal(loaded.code, 0, loaded.stderr);
  const dumped = await settee(['dump', ...local, '--no-rev']);
  assert.deepEqual(dumped.stdout.trimEnd().split('\n').map((line) => JSON.parse(line)), some);

  const own = await Server.start({ directory: data });
  assert.equal((await nano(own.url).use('some').info()).doc_count, 100);
  const beside = await settee(['load', file, ...local]);
  assert.equal(beside.code, 1);
  assert.ok(beside.stderr.includes(data), beside.stderr);
  await own.stop();
});
