// Runs a script in a mount namespace of its own, in which it may mount file systems without effect outside.
// Users other than root need a user namespace as well.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import path from 'node:path';
import { BINARY, newDirectory } from './settee.js';

const WAYS = [
  ['unshare', '--mount'],
  ['unshare', '--user', '--map-root-user', '--mount'],
];

/** Runs a command to its end. Returns its exit code and its output. */
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
 * Runs `lib/{script}` with a directory as its argument, on which it mounts a file system of type `type`. The
 * script must succeed. Its output goes to the test's diagnostics.
 */
export async function runWithMounts(t, script, type) {
  const directory = newDirectory();
  const tried = [];
  for (const way of WAYS) {
    const probe = await run([...way, 'mount', '-t', type, type, directory]);
    if (probe.code !== 0) {
      tried.push(`${way.join(' ')}: ${probe.text}`);
      continue;
    }
    const { code, text } = await run([...way, process.execPath, path.join(import.meta.dirname, script), directory]);
    t.diagnostic(text.trim());
    assert.equal(code, 0, text);
    return;
  }
  assert.fail(`cannot make a mount namespace:\n${tried.join('\n')}`);
}
