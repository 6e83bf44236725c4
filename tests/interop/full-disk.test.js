// Goal: a full disk refuses writes with 507 and nothing else: what was acknowledged stays
// readable, and writes resume by themselves once there is room.
// Method: the server's folder is on a small tmpfs, mounted in a mount namespace of its own, so
// that nothing is mounted outside. As root that takes nothing more; anyone else gets a user
// namespace with it. `lib/full-disk.js` is what runs inside.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import path from 'node:path';
import { test } from 'node:test';
import { BINARY, newFolder } from './lib/settee.js';

/** Runs a command to its end: its exit code and all it printed. */
async function run(command) {
  const child = spawn(command[0], command.slice(1), {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, SETTEE_BIN: BINARY, NODE_TEST_CONTEXT: '' },
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (part) => (text += part));
  return new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: null, text: `${error}` }));
    child.once('close', (code) => resolve({ code, text }));
  });
}

test('a full disk loses nothing, and writes resume when there is room', async (t) => {
  const folder = newFolder();
  const ways = [
    ['unshare', '--mount'],
    ['unshare', '--user', '--map-root-user', '--mount'],
  ];
  const tried = [];
  for (const way of ways) {
    const probe = await run([...way, 'mount', '-t', 'tmpfs', 'tmpfs', folder]);
    if (probe.code !== 0) {
      tried.push(`${way.join(' ')}: ${probe.text}`);
      continue;
    }
    const { code, text } = await run([
      ...way,
      process.execPath,
      path.join(import.meta.dirname, 'lib/full-disk.js'),
      folder,
    ]);
    t.diagnostic(text.trim());
    assert.equal(code, 0, text);
    return;
  }
  assert.fail(`no mount namespace to be had:\n${tried.join('\n')}`);
});
