// The inside of `no-direct-io.test.js`: runs as root of its own mount namespace, with the folder to
// mount on as its argument.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import path from 'node:path';
import { Random, SEED } from './random.js';
import { Server } from './settee.js';

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
const folder = path.join(mounted, 'data');
const args = ['--direct-io', 'true'];

let server = await Server.start({ folder, args });
await server.expect(201, 'PUT', '/db');
const rows = await server.expect(201, 'POST', '/db/_bulk_docs', { docs });
assert.ok(rows.every((row) => row.ok), JSON.stringify(rows));
const told = server.output.stderr.split('\n').filter((line) => line.includes('no direct I/O'));
assert.equal(told.length, 1, `told once, however many files there are:\n${server.output.stderr}`);
assert.match(told[0], /WARN.*page cache.*path=.*refuses direct I\/O/);
await server.kill();

server = await Server.start({ folder, args });
for (const { _id, value } of docs) assert.equal((await server.expect(200, 'GET', `/db/${_id}`)).value, value);
await server.stop();
console.log(told[0]);
