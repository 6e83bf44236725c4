// Starts and stops the built binary, and sends plain HTTP requests to it.
//
// Every server has a free port and a temporary directory of its own. Servers and directories that a test file
// leaves behind are removed when the file's process ends.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** Longest wait for an expected event, in milliseconds; only a failure takes that long. */
export const WAIT_MS_MAX = 60_000;

/** Bytes of a process's output that are kept for the message of a failure. */
const OUTPUT_BYTES_MAX = 64 * 1024;

const ROOT = path.resolve(import.meta.dirname, '../../..');

const TARGET = path.resolve(ROOT, process.env.CARGO_TARGET_DIR ?? 'target');

/** The binary under test. */
export const BINARY = process.env.SETTEE_BIN ?? path.join(TARGET, 'debug/settee');

const children = new Set();
const directories = new Set();

/**
 * Kills all running servers. Every test file that starts servers within tests calls this last: a server left
 * behind by a failed test would keep the file's process from ending.
 */
export function killAll() {
  for (const child of children) child.kill('SIGKILL');
}

process.on('exit', () => {
  killAll();
  for (const directory of directories) rmSync(directory, { recursive: true, force: true });
});

/** Creates an empty directory. */
export function newDirectory() {
  const directory = mkdtempSync(path.join(os.tmpdir(), 'settee-test-'));
  directories.add(directory);
  return directory;
}

/** Starts a process without the `SETTEE_*` variables of this one. Its output is kept. */
function start(command, options = {}) {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('SETTEE_')));
  const child = spawn(command[0], command.slice(1), {
    stdio: ['ignore', 'pipe', 'pipe'],
    ...options,
    env: { ...env, ...options.env },
  });
  const output = { child, stdout: '', stderr: '' };
  children.add(child);
  output.ended = new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: null, signal: null, error }));
    child.once('close', (code, signal) => resolve({ code, signal }));
  }).finally(() => children.delete(child));
  return output;
}

/** Runs `settee` with `args` to its end: `{ code, signal, stdout, stderr }`. */
export async function settee(args, options = {}) {
  const output = start([BINARY, ...args], options);
  for (const name of ['stdout', 'stderr']) {
    output.child[name].setEncoding('utf8').on('data', (text) => (output[name] += text));
  }
  const { code, signal, error } = await output.ended;
  if (error) throw error;
  return { code, signal, stdout: output.stdout, stderr: output.stderr };
}

/** A running server. */
export class Server {
  /**
   * Starts `settee serve` and returns once it has printed its address.
   * `directory`: its data directory; `port`: 0 for any free one; `args`: further arguments; `env`: `SETTEE_*`
   * variables. If neither names an administrator, there is none.
   */
  static async start({ directory = newDirectory(), port = 0, args = [], env = {} } = {}) {
    const server = new Server();
    server.directory = directory;
    const command = [BINARY, 'serve', '--data-dir', directory, '--listen', `127.0.0.1:${port}`, ...args];
    if (!args.includes('--admin') && !env.SETTEE_ADMIN) command.push('--no-admin');
    server.output = start(command, { env });
    const { child } = server.output;
    let found;
    const listening = new Promise((resolve) => (found = resolve));
    for (const name of ['stdout', 'stderr']) {
      child[name].setEncoding('utf8').on('data', (text) => {
        server.output[name] = (server.output[name] + text).slice(-OUTPUT_BYTES_MAX);
        const address = /http:\/\/127\.0\.0\.1:\d+/.exec(server.output.stdout);
        if (address) found(address[0]);
      });
    }
    const late = sleep(WAIT_MS_MAX, undefined, { ref: false });
    server.url = await Promise.race([listening, server.output.ended.then(() => null), late]);
    if (!server.url) {
      child.kill('SIGKILL');
      const { code, error } = await server.output.ended;
      throw new Error(`no server: ${error ?? code}\n${server.output.stdout}${server.output.stderr}`);
    }
    return server;
  }

  get pid() {
    return this.output.child.pid;
  }

  /** Stops the server by SIGTERM; its exit code must be 0. */
  async stop() {
    this.output.child.kill('SIGTERM');
    const { code, signal } = await this.output.ended;
    assert.deepEqual({ code, signal }, { code: 0, signal: null }, this.output.stderr);
  }

  /** Kills the server by SIGKILL. */
  async kill() {
    this.output.child.kill('SIGKILL');
    await this.output.ended;
  }

  /** Sends a request; `body` is sent as JSON. Returns `{ status, headers, body }`, the body parsed. */
  async request(method, target, body, headers = {}) {
    const response = await fetch(this.url + target, {
      method,
      headers: body === undefined ? headers : { 'content-type': 'application/json', ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    const isJson = (response.headers.get('content-type') ?? '').startsWith('application/json');
    return {
      status: response.status,
      headers: response.headers,
      body: isJson && text ? JSON.parse(text) : text,
    };
  }

  /** Like `request`; the response must have the status `status`. Returns the body. */
  async expect(status, method, target, body, headers) {
    const response = await this.request(method, target, body, headers);
    assert.equal(response.status, status, `${method} ${target}: ${JSON.stringify(response.body)}`);
    return response.body;
  }
}

/** Returns once `condition` holds; fails with `what` if it never does. */
export async function until(what, condition) {
  const steps = 1200;
  for (let step = 0; step < steps; step++) {
    if (await condition()) return;
    await sleep(WAIT_MS_MAX / steps);
  }
  assert.fail(`timed out: ${what}`);
}

/** The next event `name` of `emitter`, or an error if there is none in time. */
export async function nextEvent(emitter, name) {
  const [value] = await once(emitter, name, { signal: AbortSignal.timeout(WAIT_MS_MAX) });
  return value;
}
