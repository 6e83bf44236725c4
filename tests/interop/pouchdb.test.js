// Goal: PouchDB replicates with Settee in both directions, once and live, and both sides then have the same
// documents, deletions, conflicts and winners.
// Method: real city documents, PouchDB's memory adapter on one side, Settee on the other.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { cityDocuments } from './lib/cities.js';
import { newLocal, PouchDB } from './lib/pouch.js';
import { killAll, nextEvent, Server, until } from './lib/settee.js';

const CITY_COUNT = 3000;

const documents = cityDocuments(CITY_COUNT);
let server;
let remoteCount = 0;

before(async () => {
  server = await Server.start();
});

after(() => server?.stop());
after(killAll);

/** A new, empty database on the server; `options` are PouchDB's. */
async function newRemote(options = {}) {
  const remote = new PouchDB(`${server.url}/pouch-${(remoteCount += 1)}`, options);
  await remote.info();
  return remote;
}

/** The contents of a database: revision, conflicts and members of every document. */
async function content(db) {
  const { rows } = await db.allDocs({ include_docs: true, conflicts: true });
  return rows.map(({ id, value, doc }) => {
    const { _conflicts, ...members } = doc;
    return { id, rev: value.rev, conflicts: [...(_conflicts ?? [])].sort(), members };
  });
}

/** Checks that two databases have the same contents, including deleted documents. */
async function assertSame(left, right) {
  assert.deepEqual(await content(left), await content(right));
  const leaves = async (db) => {
    const { results } = await db.changes({ since: 0, style: 'all_docs' });
    const all = results.map(({ id, deleted, changes }) => ({
      id,
      deleted: Boolean(deleted),
      revs: changes.map((change) => change.rev).sort(),
    }));
    return all.sort((a, b) => (a.id < b.id ? -1 : 1));
  };
  assert.deepEqual(await leaves(left), await leaves(right));
}

test('documents are replicated in both directions unchanged', async () => {
  const local = newLocal();
  const remote = await newRemote();
  await local.bulkDocs(documents);
  const up = await PouchDB.replicate(local, remote);
  assert.equal(up.status, 'complete');
  assert.equal(up.docs_written, CITY_COUNT);
  assert.equal(up.doc_write_failures, 0);
  await assertSame(local, remote);

  const other = newLocal();
  const down = await PouchDB.replicate(remote, other);
  assert.equal(down.docs_written, CITY_COUNT);
  await assertSame(remote, other);
});

test('deletions and updates are replicated', async () => {
  const local = newLocal();
  const remote = await newRemote();
  const some = documents.slice(0, 300);
  const written = await remote.bulkDocs(some);
  await PouchDB.sync(local, remote);
  for (let n = 0; n < 100; n++) await remote.remove(written[n].id, written[n].rev);
  await local.bulkDocs(
    written.slice(100, 200).map(({ id, rev }) => ({ _id: id, _rev: rev, visited: true })),
  );
  await PouchDB.sync(local, remote);
  await assertSame(local, remote);
  assert.equal((await remote.info()).doc_count, 200);
  assert.equal((await remote.get(written[150].id)).visited, true);
  await assert.rejects(local.get(written[50].id), { status: 404, reason: 'deleted' });
});

test('edits on both sides conflict, and both sides choose the same winner', async () => {
  const local = newLocal();
  const remote = await newRemote();
  const some = documents.slice(0, 100);
  await local.bulkDocs(some);
  await PouchDB.sync(local, remote);
  const edit = async (db, side) => {
    const { rows } = await db.allDocs({ include_docs: true });
    await db.bulkDocs(rows.map(({ doc }) => ({ ...doc, side })));
  };
  await edit(local, 'local');
  await edit(remote, 'remote');
  // One of them gets a longer branch, which must win whatever its hash is.
  const longer = await local.get(some[0]._id);
  await local.put({ ...longer, side: 'local again' });
  await PouchDB.sync(local, remote);
  await assertSame(local, remote);
  const found = await content(remote);
  assert.ok(found.every(({ conflicts }) => conflicts.length === 1));
  assert.equal((await remote.get(some[0]._id)).side, 'local again');
  const sides = new Set(found.map(({ members }) => members.side));
  assert.ok(sides.has('remote') && sides.has('local'), 'every winner came from one side');

  // After the winner is deleted on one side, the other leaf wins on both.
  const { _rev, _conflicts } = await remote.get(some[1]._id, { conflicts: true });
  await remote.remove(some[1]._id, _rev);
  await PouchDB.sync(local, remote);
  assert.equal((await local.get(some[1]._id))._rev, _conflicts[0]);
  assert.equal((await remote.get(some[1]._id))._rev, _conflicts[0]);
  await assertSame(local, remote);
});

test('the same edit on both sides is not a conflict', async () => {
  const one = await newRemote();
  const two = await newRemote();
  const left = await one.put({ _id: 'ulm', spire_m: 161.53 });
  const right = await two.put({ spire_m: 161.53, _id: 'ulm' });
  assert.equal(left.rev, right.rev);
  await PouchDB.sync(one, two);
  assert.equal((await one.get('ulm', { conflicts: true }))._conflicts, undefined);
});

test('a second replication continues where the first one ended, also after a kill', async () => {
  const own = await Server.start();
  const requests = [];
  const fetch = (url, options) => {
    requests.push(String(url));
    return PouchDB.fetch(url, options);
  };
  const open = (url) => new PouchDB(`${url}/checkpoints`, { fetch });
  const local = newLocal();
  const first = open(own.url);
  await first.bulkDocs(documents.slice(0, 500));
  const initial = await PouchDB.replicate(first, local);
  assert.equal(initial.docs_written, 500);

  // The checkpoint's id depends on the source's address, so the port must be the same.
  await own.kill();
  const port = new URL(own.url).port;
  const again = await Server.start({ directory: own.directory, port });
  requests.length = 0;
  const second = open(again.url);
  const resumed = await PouchDB.replicate(second, local);
  assert.equal(resumed.docs_written, 0);
  assert.equal(resumed.docs_read, 0);
  const feeds = requests.filter((url) => url.includes('/_changes'));
  assert.ok(feeds.length > 0 && feeds.every((url) => !/[?&]since=0(&|$)/.test(url)), `${feeds}`);
  assert.ok(!requests.some((url) => url.includes('_bulk_get')), 'documents were read again');

  await second.put({ _id: 'one more' });
  assert.equal((await PouchDB.replicate(second, local)).docs_written, 1);
  await again.stop();
});

test('a live sync replicates edits in both directions while it runs', async () => {
  const local = newLocal();
  const remote = await newRemote();
  await remote.bulkDocs(documents.slice(0, 50));
  const sync = PouchDB.sync(local, remote, { live: true, retry: true });
  const ended = new Promise((resolve, reject) => sync.on('complete', resolve).on('error', reject));
  try {
    await until('the first documents', async () => (await local.info()).doc_count === 50);
    for (let round = 0; round < 10; round++) {
      await local.put({ _id: `from-local-${round}`, round });
      await remote.put({ _id: `from-remote-${round}`, round });
      const { _rev } = await remote.get(documents[round]._id);
      await remote.remove(documents[round]._id, _rev);
    }
    await until('all edits on both sides', async () => {
      const [there, here] = await Promise.all([remote.allDocs(), local.allDocs()]);
      return there.rows.length === 60 && here.rows.length === 60;
    });
    const { _rev } = await local.get('from-remote-3');
    await local.put({ _id: 'from-remote-3', _rev, answered: true });
    await until('the answer', async () => (await remote.get('from-remote-3')).answered === true);
  } finally {
    sync.cancel();
  }
  await ended;
  await assertSame(local, remote);
});

test('two databases on the server are synced over HTTP', async () => {
  const one = await newRemote();
  const two = await newRemote();
  await one.bulkDocs(documents.slice(0, 700));
  await two.bulkDocs(documents.slice(500, 1200));
  await PouchDB.sync(one, two);
  await assertSame(one, two);
  assert.equal((await two.info()).doc_count, 1200);
});

test('changes have a start, a limit, documents and an order', async () => {
  const remote = await newRemote();
  const some = documents.slice(0, 30);
  await remote.bulkDocs(some);
  const first = await remote.changes({ since: 0, limit: 10 });
  assert.deepEqual(first.results.map(({ id }) => id), some.slice(0, 10).map(({ _id }) => _id));
  const rest = await remote.changes({ since: first.last_seq, include_docs: true });
  assert.deepEqual(rest.results.map(({ doc }) => doc.name), some.slice(10).map(({ name }) => name));
  const newest = await remote.changes({ descending: true, limit: 1 });
  assert.equal(newest.results[0].id, some[29]._id);
  const chosen = await remote.changes({ since: 0, doc_ids: [some[3]._id, some[7]._id] });
  assert.deepEqual(chosen.results.map(({ id }) => id).sort(), [some[3]._id, some[7]._id].sort());
});

test('a live changes feed sends the changes after its start', async () => {
  const remote = await newRemote();
  await remote.put({ _id: 'earlier' });
  const { update_seq } = await remote.info();
  const feed = remote.changes({ since: update_seq, live: true, include_docs: true });
  try {
    const change = nextEvent(feed, 'change');
    await remote.put({ _id: 'later', n: 7 });
    assert.equal((await change).doc.n, 7);
  } finally {
    feed.cancel();
  }
});

test('many revisions are read in one request', async () => {
  const remote = await newRemote();
  const written = await remote.bulkDocs(documents.slice(0, 3));
  const docs = [...written.map(({ id, rev }) => ({ id, rev })), { id: 'never', rev: `1-${'0'.repeat(32)}` }];
  const { results } = await remote.bulkGet({ docs, revs: true });
  assert.deepEqual(results.map(({ id }) => id), docs.map(({ id }) => id));
  for (const [index, { rev }] of written.entries()) {
    const { ok } = results[index].docs[0];
    assert.equal(ok._rev, rev);
    assert.deepEqual(ok._revisions, { start: 1, ids: [rev.slice(2)] });
  }
  assert.ok(results[3].docs[0].error);
});

test('the server reports which revisions it lacks', async () => {
  const remote = await newRemote();
  const { rev } = await remote.put({ _id: 'a' });
  const absent = `2-${'0'.repeat(32)}`;
  const diff = await remote.revsDiff({ a: [rev, absent], b: [absent] });
  assert.deepEqual(diff.a.missing, [absent]);
  assert.deepEqual(diff.b.missing, [absent]);
  assert.deepEqual(diff.a.possible_ancestors, [rev]);
});

test('all leaves of a document can be read', async () => {
  const remote = await newRemote();
  const ids = ['a', 'b', 'c'].map((letter) => letter.repeat(32));
  await remote.bulkDocs(
    ids.map((hash, n) => ({ _id: 'doc', n, _rev: `1-${hash}`, _deleted: n === 1 ? true : undefined })),
    { new_edits: false },
  );
  const leaves = await remote.get('doc', { open_revs: 'all' });
  const revs = leaves.map(({ ok }) => `${ok._rev}${ok._deleted ? ' deleted' : ''}`).sort();
  assert.deepEqual(revs, [`1-${ids[0]}`, `1-${ids[1]} deleted`, `1-${ids[2]}`]);
  const { _rev, _conflicts } = await remote.get('doc', { conflicts: true });
  assert.equal(_rev, `1-${ids[2]}`);
  assert.deepEqual(_conflicts, [`1-${ids[0]}`]);
  const some = await remote.get('doc', { open_revs: [`1-${ids[0]}`, `9-${ids[0]}`] });
  assert.equal(some.find(({ ok }) => ok).ok.n, 0);
  assert.ok(some.some(({ missing }) => missing === `9-${ids[0]}`));
});

test('local documents are not replicated', async () => {
  const local = newLocal();
  const remote = await newRemote();
  const { rev } = await remote.put({ _id: '_local/settings', volume: 11 });
  await remote.put({ _id: '_local/settings', _rev: rev, volume: 12 });
  assert.equal((await remote.get('_local/settings')).volume, 12);
  await PouchDB.replicate(remote, local);
  await assert.rejects(local.get('_local/settings'), { status: 404 });
  assert.equal((await remote.allDocs()).rows.length, 0);
});

test('revisions of any text are replicated both ways', async () => {
  const local = newLocal();
  const remote = await newRemote();
  const path = (start, ids) => ({ _rev: `${start}-${ids[0]}`, _revisions: { start, ids } });
  const docs = [
    { _id: 'doc', n: 'x', ...path(1, ['x']) },
    { _id: 'doc', n: 'y', ...path(2, ['y', 'root']) },
    { _id: 'doc', n: 'hash', ...path(2, ['7'.repeat(32), 'root']) },
    { _id: 'other', ...path(3, ['c', 'b', 'a']) },
  ];
  await remote.bulkDocs(docs, { new_edits: false });
  await PouchDB.replicate(remote, local);
  for (const database of [remote, local]) {
    const { n, _conflicts } = await database.get('doc', { conflicts: true });
    assert.equal(n, 'y');
    assert.deepEqual(_conflicts, [`2-${'7'.repeat(32)}`, '1-x']);
  }
  await local.remove('doc', '2-y');
  const { rev } = await local.put({ _id: 'other', _rev: '3-c', n: 4 });
  await local.bulkDocs([{ _id: 'late', ...path(2, ['l', 'k']) }], { new_edits: false });
  await PouchDB.replicate(local, remote);
  assert.equal((await remote.get('doc')).n, 'hash');
  assert.equal((await remote.get('late'))._rev, '2-l');
  const { _revisions } = await remote.get('other', { revs: true });
  assert.deepEqual(_revisions, { start: 4, ids: [rev.slice(2), 'c', 'b', 'a'] });
});
