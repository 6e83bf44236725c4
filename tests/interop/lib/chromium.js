// A real browser with an empty profile.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { newDirectory } from './settee.js';

/** Debian's program; `chromium.sh` installs it. */
const PROGRAM = process.env.CHROMIUM_BIN ?? 'chromium';

/** No window, no sandbox (which root can't have), and no network traffic of the browser's own. */
const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-dev-shm-usage',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Bytes of the browser's output that are kept for the message of a failure. */
const OUTPUT_BYTES_MAX = 16 * 1024;

/** Opens a page. `stop()` ends the browser; `output()` returns the end of its output. */
export function openPage(url) {
  const child = spawn(PROGRAM, [...FLAGS, `--user-data-dir=${newDirectory()}`, url], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let output = '';
  child.stderr.setEncoding('utf8').on('data', (text) => (output = (output + text).slice(-OUTPUT_BYTES_MAX)));
  // Its output ends when all of its processes have ended.
  const ended = once(child, 'close').catch((error) => (output += error.message));
  process.on('exit', () => child.kill('SIGKILL'));
  return {
    ended,
    output: () => output,
    async stop() {
      child.kill('SIGTERM');
      await ended;
    },
  };
}
