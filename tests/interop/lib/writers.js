// Clients that write until their server is killed, and record what the server has acknowledged.
//
// A document is owned by one writer, which has at most one request for it in flight. So each document has one
// acknowledged state, and one more possible state if a request had no response: `states` holds the possible
// states, the acknowledged one first.

import assert from 'node:assert/strict';

/** Number of documents of a bulk request. */
const BULK_COUNT = 40;

/** Longest value in a document, in characters. */
const VALUE_LENGTH_MAX = 3000;

/** Number of documents written with `batch=ok` before a barrier. */
const BATCH_COUNT = 10;

const absent = { rev: null, body: null };

/** The documents that one writer has written under `prefix` in the database `name`. */
class Writer {
  constructor(name, prefix, random) {
    Object.assign(this, { name, prefix, random, documents: new Map(), count: 0, acknowledged: 0 });
  }

  /** Chooses the document to write next: a new one, or one that was written before. */
  pick() {
    const known = [...this.documents.keys()];
    if (known.length === 0 || this.random.below(10) < 6) return `${this.prefix}-${(this.count += 1)}`;
    return known[this.random.below(known.length)];
  }

  state(id) {
    return this.documents.get(id)?.[0] ?? absent;
  }

  body() {
    return { value: this.random.text(1 + this.random.below(VALUE_LENGTH_MAX)) };
  }

  /** Records a request: `id` may have `body` (null: deleted) from now on, with an unknown revision. */
  sent(id, body) {
    this.documents.set(id, [this.state(id), { rev: undefined, body }]);
  }

  /** Records the server's acknowledgement. */
  acknowledge(id, rev, body) {
    this.documents.set(id, [{ rev, body }]);
    this.acknowledged += 1;
  }
}

/** Writes one document per request: new ones, updates and deletions. */
export class SingleWriter extends Writer {
  async write(server) {
    const id = this.pick();
    const { rev, body: current } = this.state(id);
    const body = current !== null && this.random.below(4) === 0 ? null : this.body();
    this.sent(id, body);
    const query = rev && current !== null ? `?rev=${rev}` : '';
    const method = body === null ? 'DELETE' : 'PUT';
    const answer = await server.request(method, `/${this.name}/${id}${query}`, body ?? undefined);
    assert.equal(answer.status, body === null ? 200 : 201, JSON.stringify(answer.body));
    this.acknowledge(id, answer.body.rev, body);
    return 1;
  }
}

/** Writes many documents per request. */
export class BulkWriter extends Writer {
  async write(server) {
    const ids = new Set(Array.from({ length: BULK_COUNT }, () => this.pick()));
    const docs = [...ids].map((_id) => {
      const { rev, body: current } = this.state(_id);
      const deleted = current !== null && this.random.below(4) === 0;
      const body = deleted ? null : this.body();
      this.sent(_id, body);
      const document = { _id, ...(body ?? { _deleted: true }) };
      return current === null ? document : { ...document, _rev: rev };
    });
    const answer = await server.request('POST', `/${this.name}/_bulk_docs`, { docs });
    assert.equal(answer.status, 201, JSON.stringify(answer.body));
    for (const [index, row] of answer.body.entries()) {
      assert.equal(row.ok, true, JSON.stringify(row));
      const { _id, _rev, _deleted, ...body } = docs[index];
      assert.equal(row.id, _id);
      this.acknowledge(row.id, row.rev, _deleted ? null : body);
    }
    return answer.body.length;
  }
}

/** Writes new documents with `batch=ok`, which count as acknowledged after the barrier that follows. */
export class BatchWriter extends Writer {
  async write(server) {
    const pending = [];
    for (let n = 0; n < BATCH_COUNT; n++) {
      const id = `${this.prefix}-${(this.count += 1)}`;
      const body = this.body();
      this.sent(id, body);
      const answer = await server.request('PUT', `/${this.name}/${id}?batch=ok`, body);
      assert.equal(answer.status, 202, JSON.stringify(answer.body));
      pending.push({ id, rev: answer.body.rev, body });
    }
    await server.expect(201, 'POST', `/${this.name}/_ensure_full_commit`, {});
    for (const { id, rev, body } of pending) this.acknowledge(id, rev, body);
    return pending.length;
  }
}

/** Writes local documents, which have revisions and no history. */
export class LocalWriter extends Writer {
  async write(server) {
    const id = this.pick();
    const { rev, body: current } = this.state(id);
    const body = current !== null && this.random.below(4) === 0 ? null : this.body();
    this.sent(id, body);
    const query = current !== null ? `?rev=${rev}` : '';
    const method = body === null ? 'DELETE' : 'PUT';
    const answer = await server.request(method, `/${this.name}/_local/${id}${query}`, body ?? undefined);
    assert.equal(answer.status, body === null ? 200 : 201, JSON.stringify(answer.body));
    this.acknowledge(id, body === null ? null : answer.body.rev, body);
    return 1;
  }

  async find(server, id) {
    const { status, body } = await server.request('GET', `/${this.name}/_local/${id}`);
    if (status === 404) return absent;
    const { _id, _rev, ...members } = body;
    return { rev: _rev, body: members };
  }
}

/** Creates and deletes databases. */
export class DatabaseWriter extends Writer {
  async write(server) {
    const name = this.pick();
    const exists = this.state(name).body !== null;
    const body = exists ? null : {};
    this.sent(name, body);
    const answer = await server.request(exists ? 'DELETE' : 'PUT', `/${name}`);
    assert.equal(answer.status, exists ? 200 : 201, JSON.stringify(answer.body));
    this.acknowledge(name, null, body);
    return 1;
  }

  async find(server, name) {
    const { status } = await server.request('GET', `/${name}`);
    return { rev: null, body: status === 200 ? {} : null };
  }
}

/** Reads the documents `ids` of the database `name`: a map from id to `{ rev, body }`. */
async function findDocuments(server, name, ids) {
  const pageCount = 500;
  const found = new Map();
  for (let at = 0; at < ids.length; at += pageCount) {
    const keys = ids.slice(at, at + pageCount);
    const { rows } = await server.expect(200, 'POST', `/${name}/_all_docs?include_docs=true`, { keys });
    for (const row of rows) {
      if (row.error) {
        found.set(row.key, absent);
      } else if (row.value.deleted) {
        found.set(row.key, { rev: row.value.rev, body: null });
      } else {
        const { _id, _rev, ...body } = row.doc;
        assert.equal(_rev, row.value.rev);
        found.set(row.key, { rev: _rev, body });
      }
    }
  }
  return found;
}

const agrees = (state, found) =>
  (state.rev === undefined || state.rev === found.rev) &&
  JSON.stringify(state.body) === JSON.stringify(found.body);

const brief = ({ rev, body }) => `${rev ?? 'a revision'} ${JSON.stringify(body)?.slice(0, 40)}`;

/**
 * Compares the acknowledged states of `writer` with the server's, which the writer then takes over. Returns a
 * description of each lost document.
 */
export async function lostBy(writer, server) {
  const ids = [...writer.documents.keys()];
  const all = writer.find ? null : await findDocuments(server, writer.name, ids);
  const lost = [];
  for (const id of ids) {
    const found = all ? all.get(id) : await writer.find(server, id);
    const states = writer.documents.get(id);
    if (!states.some((state) => agrees(state, found))) {
      lost.push(`${id}: acknowledged ${states.map(brief).join(' or ')}, found ${brief(found)}`);
    }
    writer.documents.set(id, [found]);
  }
  return lost;
}
