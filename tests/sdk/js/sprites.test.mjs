// Create, get, list, watch, update, delete, and what the SDK makes of refusals (wire/rest.md §1).

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { APIError, SpritesClient, api, baseURL, client, freshName, freshSprite } from './sdk.mjs';

const refusal = (status) => (error) => error instanceof APIError && error.statusCode === status;

test('create answers with the whole sprite and get repeats it', async (t) => {
  const name = freshName();
  const made = await client.createSprite(name, {
    config: { ramMB: 512, cpus: 1, storageGB: 1, region: 'ord' },
    environment: { GREETING: 'hello' },
    urlSettings: { auth: 'public', privateAccess: 'org_users' },
    labels: ['one', 'zwei'],
    waitForCapacity: true,
    runtime: 'default',
  });
  t.after(() => made.delete());
  const got = await client.getSprite(name);
  for (const sprite of [made, got]) {
    assert.equal(sprite.name, name);
    assert.match(sprite.id, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    assert.ok(sprite.organizationName);
    assert.deepEqual(sprite.urlSettings, { auth: 'public', privateAccess: 'org_users' });
    assert.deepEqual(sprite.labels, ['one', 'zwei']);
    assert.ok(Math.abs(Date.now() - sprite.createdAt) < 60_000);
    assert.equal(sprite.id, made.id);
    assert.equal(sprite.url, made.url);
  }
  assert.equal((await made.execFile('sh', ['-c', 'echo $GREETING'])).stdout, 'hello\n');
});

test('refusals are typed', async (t) => {
  const sprite = await freshSprite(t);
  await assert.rejects(client.createSprite(sprite.name), (error) => refusal(409)(error) && /already exists/.test(error.message));
  await assert.rejects(client.createSprite('Not_A_Name'), refusal(400));
  await assert.rejects(client.getSprite(freshName('ghost')), refusal(404));
  await assert.rejects(client.deleteSprite(freshName('ghost')), refusal(404));
  await assert.rejects(client.updateSprite(freshName('ghost'), { labels: [] }), refusal(404));
  const stranger = new SpritesClient('wrong-token', { baseURL });
  await assert.rejects(stranger.getSprite(sprite.name), (error) =>
    refusal(401)(error) && typeof error.errorCode === 'string' && !error.isRateLimitError());
  await assert.rejects(stranger.listSprites(), refusal(401));
});

test('pages follow each other without gap or repeat', async (t) => {
  const prefix = freshName('page') + '-';
  const names = [...'abcdefg'].map((letter) => prefix + letter);
  for (const name of names.toReversed()) await client.createSprite(name);
  t.after(() => Promise.all(names.map((name) => client.deleteSprite(name))));

  const pages = [];
  let continuationToken;
  do {
    const page = await client.listSprites({ prefix, maxResults: 3, continuationToken });
    pages.push(page.sprites.map((sprite) => sprite.name));
    assert.equal(page.running + page.warm + page.cold, page.sprites.length);
    assert.ok(page.organizationName);
    continuationToken = page.hasMore ? page.nextContinuationToken : undefined;
  } while (continuationToken);
  assert.deepEqual(pages, [names.slice(0, 3), names.slice(3, 6), names.slice(6)]);
  assert.deepEqual((await client.listAllSprites(prefix)).map((sprite) => sprite.name), names);
  assert.deepEqual((await client.listSprites({ prefix: `${prefix}none` })).sprites, []);
});

test('watching shows what is there and what comes', { timeout: 60_000 }, async (t) => {
  const prefix = freshName('watch') + '-';
  const first = await client.createSprite(`${prefix}a`);
  t.after(() => first.delete());
  const stream = await client.watchSprites({ prefix });
  const find = async (name, status) => {
    for (let event; (event = await stream.next()) !== null;) {
      if (event.type === 'heartbeat') continue;
      assert.ok(event.name.startsWith(prefix), event.name);
      if (event.name === name && event.status === status) return event;
    }
    throw new Error('the stream ended');
  };
  const seen = await find(first.name, 'running');
  assert.ok(seen.organization.name);
  assert.ok(seen.organization.running >= 1);
  const second = await client.createSprite(`${prefix}b`);
  t.after(() => second.delete());
  // A watcher may see the moment before the new sprite has started; then it sees it running.
  await find(second.name, 'running');
  stream.close();
});

test('update changes only what it names', async (t) => {
  const sprite = await freshSprite(t);
  assert.deepEqual((await sprite.update({ labels: ['a'] })).labels, ['a']);
  await sprite.updateURLSettings({ auth: 'public' });
  const seen = await client.getSprite(sprite.name);
  assert.deepEqual([seen.labels, seen.urlSettings.auth], [['a'], 'public']);
  assert.deepEqual((await sprite.update({ labels: [] })).labels, []);
  await assert.rejects(sprite.updateURLSettings({ auth: 'everybody' }), refusal(400));
});

test('labels are also cleared by the flag of another client', async (t) => {
  const sprite = await freshSprite(t);
  await sprite.update({ labels: ['a'] });
  const answer = await api('PUT', `/v1/sprites/${sprite.name}`, { body: '{"clear_labels":true}' });
  assert.equal(answer.status, 200);
  assert.deepEqual((await client.getSprite(sprite.name)).labels, []);
});

test('delete is final and frees the name', async (t) => {
  const sprite = await client.createSprite(freshName());
  await sprite.exec('touch left');
  await sprite.delete();
  await assert.rejects(client.getSprite(sprite.name), refusal(404));
  const again = await client.createSprite(sprite.name);
  t.after(() => again.delete());
  assert.notEqual(again.id, sprite.id);
  assert.equal((await again.exec('ls')).stdout, '');
});

test('check, upgrade and restart', async (t) => {
  const sprite = await freshSprite(t);
  const health = await sprite.check();
  assert.deepEqual([health.spriteName, health.spriteId, health.status], [sprite.name, sprite.id, 'healthy']);
  assert.ok(Math.abs(Date.now() - health.checkedAt) < 60_000);
  await sprite.upgrade();
  await sprite.exec('touch kept');
  const { spriteName, machineId, message } = await sprite.restart();
  assert.equal(spriteName, sprite.name);
  assert.ok(machineId && message);
  assert.deepEqual(await sprite.listSessions(), []);
  assert.equal((await sprite.exec('ls')).stdout, 'kept\n');
});

test('a network policy that cannot be enforced is refused', async (t) => {
  const sprite = await freshSprite(t);
  await sprite.updateNetworkPolicy({ rules: [] });
  assert.deepEqual((await sprite.getNetworkPolicy()).rules, []);
  await assert.rejects(
    sprite.updateNetworkPolicy({ rules: [{ domain: 'example.com', action: 'allow' }] }),
    /422.*network_policy_unsupported|network_policy_unsupported/s,
  );
});
