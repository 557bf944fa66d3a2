// Checkpoints through the streaming SDK (wire/rest.md §3).

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { freshSprite, watch } from './sdk.mjs';

const COMMENT = 'zwölf → {"run": 1}';

async function drain(stream) {
  const messages = [];
  for await (const message of stream) messages.push(message);
  assert.equal(messages.at(-1).type, 'complete', JSON.stringify(messages));
  assert.ok(messages.slice(0, -1).every(({ type, data, error }) => type === 'info' && typeof data === 'string' && error === undefined));
  assert.ok(messages.every(({ time }) => !Number.isNaN(Date.parse(time))));
  return messages;
}

test('create, list, get, restore', async (t) => {
  const sprite = await freshSprite(t, 'cp');
  const fs = sprite.filesystem('/home/sprite');
  assert.deepEqual((await sprite.listCheckpoints()).map(({ id }) => id), ['Current']);

  await fs.writeFile('kept/file', 'first');
  const messages = await drain(await sprite.createCheckpoint(COMMENT));
  assert.equal(messages[0].data, 'Creating checkpoint...');
  assert.ok(messages.some(({ data }) => data === '  ID: v1'));
  assert.equal(messages.at(-1).data, 'Checkpoint v1 created successfully');
  await drain(await sprite.createCheckpoint());

  const listed = await sprite.listCheckpoints();
  assert.deepEqual(listed.map(({ id, comment }) => [id, comment]), [['Current', undefined], ['v2', undefined], ['v1', COMMENT]]);
  const got = await sprite.getCheckpoint('v1');
  assert.deepEqual([got.id, got.comment, got.createTime.getTime()], ['v1', COMMENT, listed[2].createTime.getTime()]);
  assert.ok(!got.isAuto && !got.health);

  await fs.writeFile('kept/file', 'second');
  await fs.writeFile('new', '');
  const run = watch(sprite.createSession('sh', ['-c', 'echo up; exec sleep 600']));
  await run.printed('up\r\n');
  const restored = await drain(await sprite.restoreCheckpoint('v1'));
  assert.equal(restored.at(-1).data, 'Restore from v1 complete');
  assert.equal((await run.end()).code, 1);
  assert.deepEqual(await sprite.listSessions(), []);
  assert.equal(await fs.readFile('kept/file', 'utf8'), 'first');
  assert.equal(await fs.exists('new'), false);
  assert.equal((await sprite.exec('cat kept/file')).stdout, 'first');
  assert.deepEqual((await sprite.listCheckpoints()).map(({ id }) => id), ['Current', 'v2', 'v1']);
});

test('unknown checkpoints', async (t) => {
  const sprite = await freshSprite(t, 'cp');
  await assert.rejects(sprite.getCheckpoint('v7'), /Checkpoint not found: v7/);
  await assert.rejects(sprite.restoreCheckpoint('v7'), /status 404/);
});

test('two at once come one after the other', async (t) => {
  const sprite = await freshSprite(t, 'cp');
  await sprite.exec('touch file');
  const ends = await Promise.all([1, 2, 3].map(async () => (await drain(await sprite.createCheckpoint())).at(-1).data));
  assert.deepEqual(ends.sort(), [1, 2, 3].map((n) => `Checkpoint v${n} created successfully`));
  assert.deepEqual((await sprite.listCheckpoints()).map(({ id }) => id), ['Current', 'v3', 'v2', 'v1']);
});
