// The part of `full-disk.test.js` that runs as root of its own mount namespace. Its argument is the directory
// to mount on.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { rmSync, statfsSync, truncateSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Random, SEED } from './random.js';
import { Server, until } from './settee.js';

/** Size of the file system. */
const DISK_BYTES = 22 << 20;

/** Size of a file that takes space until it is removed. */
const BALLAST_BYTES = 12 << 20;

/** Length of a document's value: a few hundred documents fill the disk. */
const VALUE_LENGTH = 20_000;

/** Numbers of deletions on the full disk: one by one, and in one request. */
const SINGLE_DELETION_COUNT = 3;
const BULK_DELETION_COUNT = 50;

/**
 * Number of documents in a bulk, and the space made for it, about half of what it needs. Background work, such as a
 * checkpoint or the next segment, may take some of it; a batch of the bulk is 1 MiB.
 */
const BULK_COUNT = 400;
const BULK_SPACE_BYTES = 4 << 20;

/** Number of refusals in a row after which the disk is full: background work may free a little space after the first. */
const REFUSALS_MIN = 3;

/** More documents than fit. */
const DOCUMENTS_MAX = 2 * (DISK_BYTES / VALUE_LENGTH);

const disk = process.argv[2];
execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK_BYTES}`, 'tmpfs', disk]);
const ballast = path.join(disk, 'ballast');
writeFileSync(ballast, Buffer.alloc(BALLAST_BYTES, 1));

const random = new Random(SEED);
const acknowledged = new Map();
const directory = path.join(disk, 'data');
let server = await Server.start({ directory });
await server.expect(201, 'PUT', '/full');
await server.expect(201, 'PUT', '/other');

/** Puts one document. Returns whether it was acknowledged; otherwise the disk was full. */
async function put(id, valueLength = VALUE_LENGTH) {
  const body = { value: random.text(valueLength) };
  const answer = await server.request('PUT', `/full/${id}`, body);
  if (answer.status === 507) {
    assert.equal(answer.body.error, 'insufficent_storage');
    assert.ok(answer.body.reason.length > 0);
    return false;
  }
  assert.equal(answer.status, 201, JSON.stringify(answer.body));
  acknowledged.set(id, { _id: id, _rev: answer.body.rev, ...body });
  return true;
}

/** Puts documents until `REFUSALS_MIN` in a row are refused; returns the number of those accepted. */
async function fill(prefix) {
  let refusals = 0;
  for (let count = 0; count < DOCUMENTS_MAX; ) {
    if (await put(`${prefix}-${count}`)) {
      count++;
      refusals = 0;
    } else if (++refusals === REFUSALS_MIN) return count;
  }
  return assert.fail(`${DOCUMENTS_MAX} documents of ${VALUE_LENGTH} bytes on a disk of ${DISK_BYTES}`);
}

/** Checks that the database has every acknowledged document, and no refused one. */
async function checkAll() {
  for (const [id, document] of acknowledged) {
    assert.deepEqual(await server.expect(200, 'GET', `/full/${id}`), document);
  }
  const { rows } = await server.expect(200, 'GET', '/full/_all_docs');
  assert.deepEqual(rows.map((row) => row.id), [...acknowledged.keys()].sort());
}

const count = await fill('first');
assert.ok(count > 0, 'no document fits');
await server.expect(200, 'GET', '/');
await checkAll();

// Deletions succeed on a full disk: the log keeps a reserve for them.
const victims = [...acknowledged.values()].slice(0, SINGLE_DELETION_COUNT + BULK_DELETION_COUNT);
for (const { _id, _rev } of victims.slice(0, SINGLE_DELETION_COUNT)) {
  await server.expect(200, 'DELETE', `/full/${_id}?rev=${_rev}`);
}
const docs = victims.slice(SINGLE_DELETION_COUNT).map(({ _id, _rev }) => ({ _id, _rev, _deleted: true }));
const deleted = await server.expect(201, 'POST', '/full/_bulk_docs', { docs });
assert.ok(deleted.every((row) => row.ok), JSON.stringify(deleted));
for (const { _id } of victims) acknowledged.delete(_id);
await server.expect(404, 'GET', `/full/${victims[0]._id}`);

// A bulk that fills the disk is refused as a whole. Its first documents are stored, each whole; none was
// acknowledged.
truncateSync(ballast, BALLAST_BYTES - BULK_SPACE_BYTES);
const bulk = { docs: [] };
for (let number = 100; number < 100 + BULK_COUNT; number++) {
  bulk.docs.push({ _id: `bulk-${number}`, value: random.text(VALUE_LENGTH) });
}
const refused = await server.expect(507, 'POST', '/full/_bulk_docs', bulk);
assert.equal(refused.error, 'insufficent_storage');
const query = '/full/_all_docs?include_docs=true&startkey="bulk-"&endkey="bulk-z"';
const stored = (await server.expect(200, 'GET', query)).rows.map((row) => row.doc);
assert.ok(stored.length > 0, 'the disk was full before the bulk');
assert.ok(stored.length < BULK_COUNT, 'all documents were stored, but refused');
assert.deepEqual(stored.map(({ _id, value }) => ({ _id, value })), bulk.docs.slice(0, stored.length));
for (const document of stored) acknowledged.set(document._id, document);
await server.expect(200, 'GET', '/_up');
await checkAll();

const free = statfsSync(disk);
rmSync(ballast);
await until('a write is accepted again', () => put('after'));
// The same bulk again: the stored documents are conflicts, the others are accepted.
const results = await server.expect(201, 'POST', '/full/_bulk_docs', bulk);
for (const [index, { id, rev, error }] of results.entries()) {
  assert.equal(error, index < stored.length ? 'conflict' : undefined, JSON.stringify(results[index]));
  if (rev) acknowledged.set(id, { _rev: rev, ...bulk.docs[index] });
}
await checkAll();
const more = await fill('second');
assert.ok(more > 0, 'there was space for only one document');
await checkAll();

// The server must be able to stop and to start on a full disk.
await server.kill();
server = await Server.start({ directory });
await checkAll();
await server.expect(404, 'GET', `/full/${victims[0]._id}`);
await server.stop();
server = await Server.start({ directory });
await checkAll();
await server.stop();
console.log(
  `full after ${count} documents with ${free.bfree * free.bsize} bytes free; a bulk of ${BULK_COUNT} refused, ` +
    `${stored.length} of its documents stored; ${more + 1} more once there was space; ${acknowledged.size} acknowledged, all found; seed ${SEED}`,
);
