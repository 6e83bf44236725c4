// Goal: what a 2xx promised is there after SIGKILL, however it was written.
// Method: writers of every kind run against the server, which is killed at a random moment in
// the middle of their requests and started again on the same folder; then every document ever
// acknowledged is compared with what is found. SIGKILL proves the ordering of writes and
// recovery, not the syncs: those are for the simulated power losses.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Random, SEED } from './lib/random.js';
import { killAll, Server } from './lib/settee.js';
import { BatchWriter, BulkWriter, DatabaseWriter, LocalWriter, lostBy, SingleWriter } from './lib/writers.js';

const ROUND_COUNT = 10;

/** A round is killed after fewer acknowledged requests than this, and other requests under way. */
const REQUESTS_MAX = 600;

const DATABASE = 'killed';

after(killAll);

/** Has all `writers` write until the server is gone; kills it after `requestCount` answers. */
async function writeUntilKilled(server, writers, requestCount) {
  let left = requestCount;
  let killed;
  const run = async (writer) => {
    for (;;) {
      try {
        await writer.write(server);
      } catch (error) {
        // An answer that is wrong is a failure; no answer is what this test is about.
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
    server = await Server.start({ folder: server.folder });
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

test('what was written before a graceful stop is found after it, batch=ok included', async () => {
  const server = await Server.start();
  await server.expect(201, 'PUT', '/stopped');
  const durable = await server.expect(201, 'PUT', '/stopped/durable', { n: 1 });
  const batched = await server.expect(202, 'PUT', '/stopped/batched?batch=ok', { n: 2 });
  const accepted = await server.expect(202, 'PUT', '/stopped/accepted?durability=accepted', { n: 3 });
  const written = await server.expect(202, 'PUT', '/stopped/written?durability=written', { n: 4 });
  await server.stop();
  const again = await Server.start({ folder: server.folder });
  for (const { id, rev } of [durable, batched, accepted, written]) {
    assert.equal((await again.expect(200, 'GET', `/stopped/${id}`))._rev, rev, id);
  }
  await again.stop();
});

test('a write that was only handed to the kernel survives SIGKILL', async () => {
  const server = await Server.start();
  await server.expect(201, 'PUT', '/handed');
  const written = await server.expect(202, 'PUT', '/handed/a?durability=written', { n: 4 });
  await server.kill();
  const again = await Server.start({ folder: server.folder });
  assert.equal((await again.expect(200, 'GET', '/handed/a'))._rev, written.rev);
  await again.stop();
});
