// Goal: invalid input gets CouchDB's status, error and reason, leaves the connection usable, and stores
// nothing.
// Method: raw requests, since no client sends such input, all on one connection.

import assert from 'node:assert/strict';
import http from 'node:http';
import net from 'node:net';
import { after, before, test } from 'node:test';
import { nextEvent, Server } from './lib/settee.js';

const JSON_TYPE = { 'content-type': 'application/json' };

let server;
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const ports = new Set();

before(async () => {
  server = await Server.start();
  await server.expect(201, 'PUT', '/bad');
  await server.expect(201, 'PUT', '/bad/good', { n: 1 });
});

after(() => {
  agent.destroy();
  return server?.stop();
});

/** Sends a request with any bytes as its body, on the shared connection. */
function send(method, target, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(server.url);
    const request = http.request({ agent, hostname, port, method, path: target, headers }, async (response) => {
      ports.add(response.socket.localPort);
      let text = '';
      for await (const part of response.setEncoding('utf8')) text += part;
      resolve({ status: response.statusCode, body: text && JSON.parse(text) });
    });
    request.once('error', reject);
    request.end(body);
  });
}

/** Checks the status, error and reason with which a request is refused. */
async function refused(request, status, error, reason) {
  const answer = await send(...request);
  const wanted = { status, body: { error, reason: reason ?? answer.body.reason } };
  assert.deepEqual(answer, wanted, `${request.slice(0, 2).join(' ')} ${request[2] ?? ''}`.slice(0, 300));
}

const put = (body, query = '') => ['PUT', `/bad/doc${query}`, body, JSON_TYPE];
const post = (target, body, headers = JSON_TYPE) => ['POST', target, body, headers];

test('invalid JSON is refused', async () => {
  const texts = ['{', '{"a":}', '{"a":1}}', "{'a':1}", 'nothing', '{"a":1,}', '{"a":01}', '{"a":"\u0001"}', '{"a":"\\x"}'];
  for (const text of texts) {
    await refused(put(text), 400, 'bad_request', 'invalid UTF-8 JSON');
    await refused(post('/bad', text), 400, 'bad_request', 'invalid UTF-8 JSON');
    await refused(post('/bad/_bulk_docs', text), 400, 'bad_request', 'invalid UTF-8 JSON');
  }
});

test('invalid UTF-8 is refused', async () => {
  for (const bytes of [[0xff], [0xc0, 0xaf], [0xed, 0xa0, 0x80], [0xe2, 0x82], [0xf4, 0x90, 0x80, 0x80]]) {
    const body = Buffer.concat([Buffer.from('{"a":"'), Buffer.from(bytes), Buffer.from('"}')]);
    await refused(put(body), 400, 'bad_request', 'invalid UTF-8 JSON');
  }
});

test('JSON that is not a document is refused', async () => {
  for (const text of ['[]', '1', '"text"', 'null', 'true']) {
    await refused(put(text), 400, 'bad_request', 'Document must be a JSON object');
  }
});

test('a missing body is refused', async () => {
  await refused(put(''), 400, 'bad_request');
  await refused(post('/bad', ''), 400, 'bad_request');
  await refused(post('/bad/_bulk_docs', ''), 400, 'bad_request');
  await refused(post('/bad/_bulk_docs', '{}'), 400, 'bad_request', 'POST body must include `docs` parameter.');
  await refused(post('/bad/_bulk_docs', '{"docs":1}'), 400, 'bad_request', '`docs` parameter must be an array.');
});

test('a content type other than JSON is refused for POST', async () => {
  const reason = 'Content-Type must be application/json';
  for (const target of ['/bad', '/bad/_bulk_docs', '/bad/_bulk_get', '/bad/_revs_diff', '/bad/_ensure_full_commit']) {
    await refused(post(target, '{"docs":[]}', { 'content-type': 'text/plain' }), 415, 'bad_content_type', reason);
  }
  await refused(['POST', '/bad', '{}'], 415, 'bad_content_type', reason);
});

test('PUT of a document accepts any content type', async () => {
  const answer = await send('PUT', '/bad/any-type', '{"n":1}', { 'content-type': 'text/plain' });
  assert.equal(answer.status, 201);
  const { rev } = answer.body;
  assert.equal((await send('DELETE', `/bad/any-type?rev=${rev}`)).status, 200);
});

test('ids that begin with an underscore are refused', async () => {
  const reason = 'Only reserved document ids may start with underscore.';
  await refused(['PUT', '/bad/_doc', '{}', JSON_TYPE], 400, 'illegal_docid', reason);
  await refused(post('/bad', '{"_id":"_doc"}'), 400, 'illegal_docid', reason);
  await refused(post('/bad', '{"_id":""}'), 400, 'illegal_docid', 'Document id must not be empty');
  await refused(post('/bad', '{"_id":7}'), 400, 'illegal_docid', 'Document id must be a string');
});

test('unknown members that begin with an underscore are refused, escaped or not', async () => {
  const reason = 'Bad special document member: _unknown';
  await refused(put('{"_unknown":1}'), 400, 'doc_validation', reason);
  await refused(put('{"\\u005funknown":1}'), 400, 'doc_validation', reason);
  await refused(post('/bad', '{"_unknown":1}'), 400, 'doc_validation', reason);
});

test('invalid revisions are refused', async () => {
  for (const revision of ['1', 'x', '-1', 'x-1']) {
    await refused(put('{}', `?rev=${revision}`), 400, 'bad_request');
    await refused(put(`{"_rev":"${revision}"}`), 400, 'bad_request');
    await refused(['GET', `/bad/good?rev=${revision}`], 400, 'bad_request');
    await refused(['DELETE', `/bad/good?rev=${revision}`], 400, 'bad_request');
  }
  await refused(put('{"_rev":7}'), 400, 'bad_request');
  const [one, two] = ['a', 'b'].map((digit) => `1-${digit.repeat(32)}`);
  await refused(put(`{"_rev":"${one}"}`, `?rev=${two}`), 400, 'bad_request');
});

test('a document over the limit is refused, and so is one in a bulk', async () => {
  const large = `{"value":"${'x'.repeat(8_000_001)}"}`;
  await refused(put(large), 413, 'document_too_large', 'doc');
  assert.equal((await send('GET', '/bad/doc')).status, 404);
});

test('unknown databases and illegal names are refused', async () => {
  for (const [method, target] of [['GET', ''], ['DELETE', ''], ['GET', '/doc'], ['PUT', '/doc'], ['GET', '/_all_docs'], ['GET', '/_changes']]) {
    const body = method === 'PUT' ? '{}' : undefined;
    await refused([method, `/unknown${target}`, body], 404, 'not_found', 'Database does not exist.');
  }
  for (const name of ['Upper', '1st', '-dash', 'sp%20ace', 'caf%C3%A9', 'a.b', '_own']) {
    const reason =
      `Name: '${decodeURIComponent(name)}'. Only lowercase characters (a-z), digits (0-9), and any of the ` +
      'characters _, $, (, ), +, -, and / are allowed. Must begin with a letter.';
    await refused(['PUT', `/${name}`], 400, 'illegal_database_name', reason);
  }
});

test('query parameters of the wrong kind are refused', async () => {
  for (const query of ['limit=x', 'limit=-1', 'skip=x', 'descending=x', 'include_docs=x', 'inclusive_end=x']) {
    await refused(['GET', `/bad/_all_docs?${query}`], 400, 'query_parse_error');
  }
  for (const query of ['startkey=x', 'endkey=%7B', 'key=%22']) {
    const answer = await send('GET', `/bad/_all_docs?${query}`);
    assert.equal(answer.status, 400, query);
  }
  for (const query of ['since=x', 'since=-5', 'since=5-', 'since=5-a%20b', 'feed=x', 'style=x', 'heartbeat=x']) {
    assert.equal((await send('GET', `/bad/_changes?${query}`)).status, 400, query);
  }
});

test('unsupported methods are refused', async () => {
  await refused(['PATCH', '/bad', '{}', JSON_TYPE], 405, 'method_not_allowed');
  await refused(['PUT', '/_all_dbs'], 405, 'method_not_allowed');
  await refused(['DELETE', '/bad/_all_docs'], 405, 'method_not_allowed');
});

test('endpoints that are not implemented answer 501', async () => {
  for (const [method, target] of [['GET', '/bad/_design/x/_search/y'], ['POST', '/_replicate']]) {
    const { status, body } = await send(method, target, method === 'POST' ? '{}' : undefined, JSON_TYPE);
    assert.equal(status, 501, `${method} ${target}: ${JSON.stringify(body)}`);
    assert.ok(body.error && body.reason);
  }
});

test('a foreign host or origin is refused by a server without an administrator', async () => {
  for (const headers of [{ host: 'example.org' }, { origin: 'http://example.org' }]) {
    const { status, body } = await send('GET', '/bad', undefined, headers);
    assert.equal(status, 403, JSON.stringify(body));
    assert.ok(body.error && body.reason);
  }
  const { host } = new URL(server.url);
  for (const headers of [{ host: host.replace('127.0.0.1', 'localhost') }, { origin: server.url }]) {
    assert.equal((await send('GET', '/bad', undefined, headers)).status, 200);
  }
});

test('no refused request stored anything, and all used one connection', async () => {
  const { body } = await send('GET', '/bad/_all_docs');
  assert.deepEqual(body.rows.map((row) => row.id), ['good']);
  assert.equal((await send('GET', '/bad')).body.doc_del_count, 1);
  // The connection may be closed if a body over the limit is left unread.
  assert.ok(ports.size <= 2, `${ports.size} connections`);
});

test('a request that is not HTTP is answered or disconnected, and the server continues', async () => {
  for (const text of ['nonsense\r\n\r\n', 'GET / HTTP/9.9\r\n\r\n', 'PUT /bad/x HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n']) {
    const socket = net.connect(new URL(server.url).port, '127.0.0.1');
    let answer = '';
    socket.setEncoding('utf8').on('data', (part) => (answer += part));
    socket.write(text);
    await nextEvent(socket, 'close');
    assert.match(answer, /^(HTTP\/1\.[01] 4|$)/, text);
  }
  assert.equal((await send('GET', '/bad/good')).status, 200);
});

test('a request that is aborted within its body stores nothing', async () => {
  const socket = net.connect(new URL(server.url).port, '127.0.0.1');
  await nextEvent(socket, 'connect');
  socket.write('PUT /bad/half HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{"n":1}');
  socket.destroy();
  await nextEvent(socket, 'close');
  assert.equal((await send('GET', '/bad/half')).status, 404);
});
