// PouchDB, assembled from plugins that need no native code.

import http from 'pouchdb-adapter-http';
import memory from 'pouchdb-adapter-memory';
import PouchDB from 'pouchdb-core';
import find from 'pouchdb-find';
import mapreduce from 'pouchdb-mapreduce';
import replication from 'pouchdb-replication';

PouchDB.plugin(http).plugin(memory).plugin(replication).plugin(mapreduce).plugin(find);

let localCount = 0;

/** A new, empty database in this process. */
export function newLocal() {
  return new PouchDB(`local-${(localCount += 1)}`, { adapter: 'memory' });
}

export { PouchDB };
