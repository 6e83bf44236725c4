// The part of `no-direct-io.test.js` that runs as root of its own mount namespace. Its argument is the
// directory to mount on.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import path from 'node:path';
import { Random, SEED } from './random.js';
import { Server, until } from './settee.js';

const DOCUMENT_COUNT = 100;
const VALUE_LENGTH = 10_000;

const mounted = process.argv[2];
execFileSync('mount', ['-t', 'ramfs', 'ramfs', mounted]);
const flags = constants.O_RDWR | constants.O_CREAT;
closeSync(openSync(path.join(mounted, 'probe'), flags));
assert.throws(() => openSync(path.join(mounted, 'probe'), flags | constants.O_DIRECT), { code: 'EINVAL' });

const random = new Random(SEED);
const docs = Array.from({ length: DOCUMENT_COUNT }, (_, number) => ({
  _id: `d${number}`,
  value: random.text(VALUE_LENGTH),
}));
const directory = path.join(mounted, 'data');
const args = ['--direct-io', 'true'];

let server = await Server.start({ directory, args });
await server.expect(201, 'PUT', '/db');
const rows = await server.expect(201, 'POST', '/db/_bulk_docs', { docs });
assert.ok(rows.every((row) => row.ok), JSON.stringify(rows));
const warnings = () => server.output.stderr.split('\n').filter((line) => line.includes('no direct I/O'));
// The server answers before its log is written.
await until('a line of the log on direct I/O', () => warnings().length > 0);
await server.kill();

server = await Server.start({ directory, args });
for (const { _id, value } of docs) assert.equal((await server.expect(200, 'GET', `/db/${_id}`)).value, value);
await server.stop();
assert.equal(warnings().length, 1, `logged once, whatever the number of files:\n${server.output.stderr}`);
assert.match(warnings()[0], /WARN.*page cache.*path=.*refuses direct I\/O/);
console.log(warnings()[0]);
