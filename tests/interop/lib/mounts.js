// Runs a script where it may mount: in a mount namespace of its own, so that nothing is mounted
// outside. As root that takes nothing more; anyone else gets a user namespace with it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import path from 'node:path';
import { BINARY, newFolder } from './settee.js';

const WAYS = [
  ['unshare', '--mount'],
  ['unshare', '--user', '--map-root-user', '--mount'],
];

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

/**
 * Runs `lib/{script}` with a folder to mount a file system of type `type` on as its argument; the
 * script must end well. What it printed goes to the test's diagnostics.
 */
export async function runWithMounts(t, script, type) {
  const folder = newFolder();
  const tried = [];
  for (const way of WAYS) {
    const probe = await run([...way, 'mount', '-t', type, type, folder]);
    if (probe.code !== 0) {
      tried.push(`${way.join(' ')}: ${probe.text}`);
      continue;
    }
    const { code, text } = await run([...way, process.execPath, path.join(import.meta.dirname, script), folder]);
    t.diagnostic(text.trim());
    assert.equal(code, 0, text);
    return;
  }
  assert.fail(`no mount namespace to be had:\n${tried.join('\n')}`);
}
