// Goal: every write acknowledged by a 2xx survives SIGKILL, however it was requested.
// Method: writers of every kind run against the server, which is killed at a random moment during their
// requests and restarted on the same directory; then every acknowledged document is compared with the
// recovered one, and views with what their functions make of the recovered documents. SIGKILL tests the order of writes and recovery, not the syncs: simulated power losses test
// those.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Random, SEED } from './lib/random.js';
import { killAll, Server } from './lib/settee.js';
import { BatchWriter, BulkWriter, DatabaseWriter, LocalWriter, lostBy, SingleWriter } from './lib/writers.js';

const ROUND_COUNT = 10;

/** Upper limit of the acknowledged requests after which the server is killed; others are then in flight. */
const REQUESTS_MAX = 600;

const DATABASE = 'killed';

/** Rounds of the test of views, and the upper limit of their requests. */
const VIEW_ROUND_COUNT = 6;
const VIEW_REQUESTS_MAX = 300;

after(killAll);

/** Runs all `writers` until the server has ended; kills it after `requestCount` responses. */
async function writeUntilKilled(server, writers, requestCount) {
  let left = requestCount;
  let killed;
  const run = async (writer) => {
    for (;;) {
      try {
        await writer.write(server);
      } catch (error) {
        // A wrong response is a failure; a missing one is expected after the kill.
        if (killed && error instanceof TypeError) return;
        throw error;
      }
      left -= 1;
      if (left === 0) killed = server.kill();
    }
  };
  await Promise.all(writers.map(run));
  await killed;
}

test('every acknowledged write is found after SIGKILL', async (t) => {
  const random = new Random(SEED);
  t.diagnostic(`seed ${SEED}`);
  let server = await Server.start();
  await server.expect(201, 'PUT', `/${DATABASE}`);
  const writers = [
    ...Array.from({ length: 4 }, (_, n) => new SingleWriter(DATABASE, `single${n}`, random)),
    ...Array.from({ length: 2 }, (_, n) => new BulkWriter(DATABASE, `bulk${n}`, random)),
    new BatchWriter(DATABASE, 'batch', random),
    new LocalWriter(DATABASE, 'local', random),
    new DatabaseWriter(null, 'made', random),
  ];
  const lost = [];
  for (let round = 0; round < ROUND_COUNT; round++) {
    await writeUntilKilled(server, writers, 1 + random.below(REQUESTS_MAX));
    server = await Server.start({ directory: server.directory });
    for (const writer of writers) lost.push(...(await lostBy(writer, server)));
  }
  const sum = (count) => writers.reduce((total, writer) => total + count(writer), 0);
  const documents = sum((writer) => writer.documents.size);
  t.diagnostic(
    `rounds ${ROUND_COUNT}, acknowledged ${sum((writer) => writer.acknowledged)} writes of ` +
      `${documents} documents, found ${documents - lost.length}, lost ${lost.length}`,
  );
  assert.equal(lost.length, 0, `seed ${SEED}:\n${lost.slice(0, 10).join('\n')}`);
  await server.stop();
});

/** Queries a view and an index again and again, so that they are being built when the server is killed. */
class Reader {
  constructor(name) {
    this.name = name;
  }

  async write(server) {
    await server.expect(200, 'GET', `/${this.name}/_design/d/_view/lengths?reduce=false&limit=1`);
    await server.expect(200, 'GET', `/${this.name}/_design/d/_view/firsts?group=true`);
    const query = { selector: { value: { $gt: 'x' } }, sort: ['value'], limit: 1 };
    await server.expect(200, 'POST', `/${this.name}/_find`, query);
  }
}

/** Compares views and an index with the documents; returns their number. */
async function checkViews(server, name) {
  const { rows } = await server.expect(200, 'GET', `/${name}/_all_docs?include_docs=true&startkey="a"`);
  const wanted = rows
    .map(({ id, doc }) => ({ id, key: doc.value.length, value: doc.value[0] }))
    .sort((a, b) => a.key - b.key || (a.id < b.id ? -1 : 1));
  const lengths = await server.expect(200, 'GET', `/${name}/_design/d/_view/lengths?reduce=false`);
  assert.deepEqual(lengths.rows, wanted);
  assert.equal(lengths.total_rows, wanted.length);
  const count = await server.expect(200, 'GET', `/${name}/_design/d/_view/lengths`);
  assert.equal(count.rows[0]?.value ?? 0, wanted.length);
  const sums = new Map();
  for (const { key, value } of wanted) sums.set(value, (sums.get(value) ?? 0) + key);
  const firsts = await server.expect(200, 'GET', `/${name}/_design/d/_view/firsts?group=true`);
  assert.deepEqual(firsts.rows.map(({ key, value }) => [key, value]), [...sums].sort());
  const query = { selector: { value: { $gt: null } }, use_index: 'i', fields: ['_id'], limit: 1_000_000 };
  const { docs, warning } = await server.expect(200, 'POST', `/${name}/_find`, query);
  assert.equal(warning, undefined);
  assert.deepEqual(docs.map(({ _id }) => _id).sort(), wanted.map(({ id }) => id).sort());
  return wanted.length;
}

test('views and indexes agree with the documents after SIGKILL', async (t) => {
  const random = new Random(SEED);
  t.diagnostic(`seed ${SEED}`);
  let server = await Server.start();
  await server.expect(201, 'PUT', '/viewed');
  const firsts = 'function (keys, values) { return sum(values); }';
  await server.expect(201, 'PUT', '/viewed/_design/d', {
    views: {
      lengths: { map: 'function (doc) { emit(doc.value.length, doc.value[0]); }', reduce: '_count' },
      firsts: { map: 'function (doc) { emit(doc.value[0], doc.value.length); }', reduce: firsts },
    },
  });
  await server.expect(200, 'POST', '/viewed/_index', { index: { fields: ['value'] }, ddoc: 'i' });
  const writers = [
    ...Array.from({ length: 2 }, (_, n) => new SingleWriter('viewed', `single${n}`, random)),
    new BulkWriter('viewed', 'bulk', random),
  ];
  let count = 0;
  for (let round = 0; round < VIEW_ROUND_COUNT; round++) {
    await writeUntilKilled(server, [...writers, new Reader('viewed')], 1 + random.below(VIEW_REQUESTS_MAX));
    server = await Server.start({ directory: server.directory });
    for (const writer of writers) assert.deepEqual(await lostBy(writer, server), []);
    count = await checkViews(server, 'viewed');
  }
  assert.ok(count > 0, 'no document was left to compare');
  t.diagnostic(`rounds ${VIEW_ROUND_COUNT}, ${count} documents at last`);
  await server.stop();
});

test('every write before a graceful stop survives it, including batch=ok', async () => {
  const server = await Server.start();
  await server.expect(201, 'PUT', '/stopped');
  const durable = await server.expect(201, 'PUT', '/stopped/durable', { n: 1 });
  const batched = await server.expect(202, 'PUT', '/stopped/batched?batch=ok', { n: 2 });
  const accepted = await server.expect(202, 'PUT', '/stopped/accepted?durability=accepted', { n: 3 });
  const written = await server.expect(202, 'PUT', '/stopped/written?durability=written', { n: 4 });
  await server.stop();
  const again = await Server.start({ directory: server.directory });
  for (const { id, rev } of [durable, batched, accepted, written]) {
    assert.equal((await again.expect(200, 'GET', `/stopped/${id}`))._rev, rev, id);
  }
  await again.stop();
});

test('a write that has only reached the kernel survives SIGKILL', async () => {
  const server = await Server.start();
  await server.expect(201, 'PUT', '/handed');
  const written = await server.expect(202, 'PUT', '/handed/a?durability=written', { n: 4 });
  await server.kill();
  const again = await Server.start({ directory: server.directory });
  assert.equal((await again.expect(200, 'GET', '/handed/a'))._rev, written.rev);
  await again.stop();
});
