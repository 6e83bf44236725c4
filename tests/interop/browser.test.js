// Goal: PouchDB in a browser syncs with Settee from a page of another origin, in both directions, once CORS
// is configured over HTTP; without CORS the browser blocks every response.
// Method: Chromium loads a page from another port. The page reports the result of each attempt to that port;
// the response to a report begins the next attempt.

import assert from 'node:assert/strict';
import { createReadStream } from 'node:fs';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { openPage } from './lib/chromium.js';
import { killAll, Server, WAIT_MS_MAX } from './lib/settee.js';

const POUCHDB = new URL('./node_modules/pouchdb/dist/pouchdb.min.js', import.meta.url);
const CREDENTIALS = { authorization: `Basic ${btoa('ann:secret')}` };

/** Runs in the browser: syncs at each response to a report, and reports the result. */
async function inPage(remoteUrl) {
  const send = async (report) => {
    const answer = await fetch('/report', { method: 'POST', body: JSON.stringify(report) });
    return answer.json();
  };
  const local = new PouchDB('notes');
  await local.put({ _id: 'of the page', text: 'grüße' });
  await local.putAttachment('with a picture', 'a.png', new Blob([new Uint8Array(5000)]), 'image/png');
  let next = await send({ ready: true });
  while (next.go) {
    const remote = new PouchDB(remoteUrl, { skip_setup: true, auth: { username: 'ann', password: 'secret' } });
    try {
      const { push, pull } = await local.sync(remote);
      const { rows } = await local.allDocs({ include_docs: true });
      next = await send({ push: push.docs_written, pull: pull.docs_written, docs: rows.map((row) => row.doc) });
    } catch (error) {
      next = await send({ failed: String(error.message ?? error) });
    }
  }
}

let server;
let origin;
let pages;
let browser;
/** Receives the page's next report, with a function that answers it. */
let report;

before(async () => {
  server = await Server.start({ args: ['--admin', 'ann:secret'] });
  await server.expect(201, 'PUT', '/notes', undefined, CREDENTIALS);
  await server.expect(201, 'PUT', '/notes/of%20the%20server', { n: 1 }, CREDENTIALS);
  pages = http.createServer((request, response) => {
    if (request.url === '/pouchdb.js') return void createReadStream(POUCHDB).pipe(response);
    if (request.url !== '/report') {
      response.setHeader('content-type', 'text/html; charset=utf-8');
      const script = `(${inPage})(${JSON.stringify(`${server.url}/notes`)})`;
      return void response.end(`<!doctype html><script src="/pouchdb.js"></script><script>${script}</script>`);
    }
    let text = '';
    request.setEncoding('utf8').on('data', (part) => (text += part));
    request.on('end', () => report({ found: JSON.parse(text), answer: (go) => response.end(JSON.stringify({ go })) }));
  });
  await new Promise((resolve) => pages.listen(0, '127.0.0.1', resolve));
  origin = `http://127.0.0.1:${pages.address().port}`;
});

after(async () => {
  await browser?.stop();
  pages?.close();
  pages?.closeAllConnections();
  await server?.stop();
});
after(killAll);

/** The page's next report. */
async function nextReport() {
  const reported = new Promise((resolve) => (report = resolve));
  const late = sleep(WAIT_MS_MAX, undefined, { ref: false }).then(() => 'it reported nothing');
  const found = await Promise.race([reported, browser.ended.then(() => 'it ended'), late]);
  assert.equal(typeof found, 'object', `the browser: ${found}\n${browser.output()}`);
  return found;
}

async function configure(key, value) {
  await server.expect(200, 'PUT', `/_node/_local/_config/${key}`, value, CREDENTIALS);
}

test('a page of another origin is blocked until CORS is configured, and then syncs in both directions', async () => {
  browser = openPage(origin);
  const ready = await nextReport();
  assert.deepEqual(ready.found, { ready: true });

  ready.answer(true);
  const without = await nextReport();
  assert.match(without.found.failed, /fetch/i, JSON.stringify(without.found));
  const untouched = await server.expect(200, 'GET', '/notes/_all_docs', undefined, CREDENTIALS);
  assert.deepEqual(untouched.rows.map((row) => row.id), ['of the server']);

  await configure('chttpd/enable_cors', 'true');
  await configure('cors/origins', origin);
  await configure('cors/credentials', 'true');
  await configure('cors/headers', 'accept, authorization, content-type, origin, referer');
  without.answer(true);
  const synced = await nextReport();
  assert.deepEqual([synced.found.push, synced.found.pull], [2, 1], JSON.stringify(synced.found));
  assert.deepEqual(synced.found.docs.map((doc) => doc._id), ['of the page', 'of the server', 'with a picture']);
  const docs = await server.expect(200, 'GET', '/notes/_all_docs?include_docs=true', undefined, CREDENTIALS);
  assert.equal(docs.rows.find((row) => row.id === 'of the page').doc.text, 'grüße');
  assert.equal(docs.rows.find((row) => row.id === 'with a picture').doc._attachments['a.png'].length, 5000);

  await configure('cors/origins', 'https://elsewhere.example');
  synced.answer(true);
  const other = await nextReport();
  assert.match(other.found.failed, /fetch/i, JSON.stringify(other.found));
  other.answer(false);
});
