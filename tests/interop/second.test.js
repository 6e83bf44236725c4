// Goal: a data directory belongs to one process.
// Method: a second server on the directory of a running one.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { killAll, Server, settee } from './lib/settee.js';

after(killAll);

test('a second process on the same directory is refused and names it, and the first continues', async () => {
  const first = await Server.start();
  await first.expect(201, 'PUT', '/mine');
  const second = await settee(['serve', '--data-dir', first.directory, '--listen', '127.0.0.1:0']);
  assert.equal(second.code, 1, second.stderr);
  assert.ok(second.stderr.includes(first.directory), second.stderr);
  await first.expect(201, 'PUT', '/mine/a', { n: 1 });
  await first.stop();

  const next = await Server.start({ directory: first.directory });
  assert.equal((await next.expect(200, 'GET', '/mine/a')).n, 1);
  await next.stop();
});

test('the directory of a killed process can be used again', async () => {
  const first = await Server.start();
  await first.expect(201, 'PUT', '/mine');
  await first.kill();
  const next = await Server.start({ directory: first.directory });
  assert.deepEqual(await next.expect(200, 'GET', '/_all_dbs'), ['mine']);
  await next.stop();
});
