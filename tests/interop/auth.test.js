// Goal: with an administrator set, only requests with its password or its cookie are authorized.
// Method: `nano` with and without credentials against a server started with `--admin`.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import nano from 'nano';
import { killAll, Server } from './lib/settee.js';

let server;

/** A new client, without a cookie. */
const anonymous = () => nano(server.url);
const withPassword = (password) => nano(server.url.replace('//', `//ann:${encodeURIComponent(password)}@`));

before(async () => {
  server = await Server.start({ args: ['--admin', 'ann:secret word'] });
  await withPassword('secret word').db.create('vault');
});

after(() => server?.stop());
after(killAll);

const unauthorized = (promise, reason) =>
  assert.rejects(promise, (thrown) => {
    assert.deepEqual(
      { statusCode: thrown.statusCode, error: thrown.error, reason: thrown.reason },
      { statusCode: 401, error: 'unauthorized', reason },
    );
    return true;
  });

test('anonymous requests may read the welcome, the health and their session, and nothing else', async () => {
  const couch = anonymous();
  assert.equal((await couch.info()).couchdb, 'Welcome');
  assert.equal((await couch.relax({ path: '_up' })).status, 'ok');
  assert.deepEqual((await couch.session()).userCtx, { name: null, roles: [] });
  await unauthorized(couch.db.list(), 'You are not a server admin.');
  await unauthorized(couch.db.create('mine'), 'You are not a server admin.');
  await unauthorized(couch.db.get('vault'), 'You are not authorized to access this db.');
  await unauthorized(couch.use('vault').get('a'), 'You are not authorized to access this db.');
  await unauthorized(couch.use('vault').insert({}, 'a'), 'You are not authorized to access this db.');
});

test('the right password is accepted, a wrong one and an unknown name are refused', async () => {
  assert.deepEqual(await withPassword('secret word').db.list(), ['vault']);
  await unauthorized(withPassword('secret').db.list(), 'Name or password is incorrect.');
  const bob = nano(server.url.replace('//', '//bob:secret@'));
  await unauthorized(bob.db.list(), 'Name or password is incorrect.');
});

test('a cookie is issued for the password, authorizes requests, and ends with the session', async () => {
  const couch = anonymous();
  await unauthorized(couch.auth('ann', 'wrong'), 'Name or password is incorrect.');
  const login = await couch.auth('ann', 'secret word');
  assert.equal(login.ok, true);
  assert.equal(login.name, 'ann');
  assert.deepEqual(login.roles, ['_admin']);
  const session = await couch.session();
  assert.deepEqual(session.userCtx, { name: 'ann', roles: ['_admin'] });
  assert.equal(session.info.authenticated, 'cookie');
  assert.deepEqual(await couch.db.list(), ['vault']);
  assert.deepEqual(await couch.relax({ db: '_session', method: 'DELETE' }), { ok: true });
});

test('a cookie is HttpOnly, and a forged one is refused', async () => {
  const response = await server.request('POST', '/_session', { name: 'ann', password: 'secret word' });
  assert.equal(response.status, 200);
  const cookie = response.headers.get('set-cookie');
  assert.match(cookie, /^AuthSession=[^;]+;.*HttpOnly/i);
  const value = cookie.split(';')[0];
  await server.expect(200, 'GET', '/_all_dbs', undefined, { cookie: value });
  const at = value.length - 3;
  const forged = value.slice(0, at) + (value[at] === 'A' ? 'B' : 'A') + value.slice(at + 1);
  const refused = await server.request('GET', '/_all_dbs', undefined, { cookie: forged });
  assert.ok([400, 401].includes(refused.status), `${refused.status}`);
});

test('the password may come from the environment', async () => {
  const other = await Server.start({ env: { SETTEE_ADMIN: 'eve:from outside' } });
  try {
    await other.expect(401, 'GET', '/_all_dbs');
    const authorization = `Basic ${Buffer.from('eve:from outside').toString('base64')}`;
    assert.deepEqual(await other.expect(200, 'GET', '/_all_dbs', undefined, { authorization }), []);
  } finally {
    await other.stop();
  }
});
