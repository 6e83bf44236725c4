// Goal: a data folder belongs to one process.
// Method: a second server on the folder of a running one.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { killAll, Server, settee } from './lib/settee.js';

after(killAll);

test('a second process on the same folder is refused and names it, and the first goes on', async () => {
  const first = await Server.start();
  await first.expect(201, 'PUT', '/mine');
  const second = await settee(['serve', '--data-dir', first.folder, '--listen', '127.0.0.1:0']);
  assert.equal(second.code, 1, second.stderr);
  assert.ok(second.stderr.includes(first.folder), second.stderr);
  await first.expect(201, 'PUT', '/mine/a', { n: 1 });
  await first.stop();

  const next = await Server.start({ folder: first.folder });
  assert.equal((await next.expect(200, 'GET', '/mine/a')).n, 1);
  await next.stop();
});

test('a folder whose process was killed is free', async () => {
  const first = await Server.start();
  await first.expect(201, 'PUT', '/mine');
  await first.kill();
  const next = await Server.start({ folder: first.folder });
  assert.deepEqual(await next.expect(200, 'GET', '/_all_dbs'), ['mine']);
  await next.stop();
});
