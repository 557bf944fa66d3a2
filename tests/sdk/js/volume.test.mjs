// Large data, byte for byte, in both directions. `seq` makes data in which every line differs.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import crypto from 'node:crypto';
import { once } from 'node:events';
import { after, before, test } from 'node:test';

import { client, freshName, sha256, watch } from './sdk.mjs';

const QUARTER_GIGABYTE = 256 * 1024 * 1024;

let box;
before(async () => { box = await client.createSprite(freshName('volume')); });
after(() => box.delete());

const numbered = (size) => `seq 1 100000000 | head -c ${size}`;
const localSum = (size) => spawnSync('sh', ['-c', `${numbered(size)} | sha256sum`]).stdout.toString().split(' ')[0];

for (const size of [20_000_000, QUARTER_GIGABYTE]) {
  test(`${size} bytes down`, async () => {
    const hash = crypto.createHash('sha256');
    let length = 0;
    const command = box.spawn('sh', ['-c', numbered(size)]);
    command.stdout.on('data', (chunk) => {
      hash.update(chunk);
      length += chunk.length;
    });
    command.stderr.resume();
    await once(command.stdout, 'end');
    assert.equal(await command.wait(), 0);
    assert.deepEqual([length, hash.digest('hex')], [size, localSum(size)]);
  });

  test(`${size} bytes up`, async () => {
    const command = box.spawn('sha256sum');
    const run = watch(command);
    await once(command, 'spawn');
    const hash = crypto.createHash('sha256');
    const chunk = Buffer.alloc(1024 * 1024);
    for (let sent = 0; sent < size; sent += chunk.length) {
      const piece = Buffer.from(chunk.subarray(0, Math.min(chunk.length, size - sent)));
      piece.writeUInt32LE(sent, 0); // no two pieces are alike
      hash.update(piece);
      if (!command.stdin.write(piece)) await once(command.stdin, 'drain');
    }
    command.stdin.end();
    assert.deepEqual(await run.end(), { code: 0, stdout: `${hash.digest('hex')}  -\n`, stderr: '' });
  });
}

test('20 MB up and down at once', async () => {
  const sent = crypto.randomBytes(20_000_000);
  const command = box.spawn('cat');
  const chunks = [];
  command.stdout.on('data', (chunk) => chunks.push(chunk));
  command.stderr.resume();
  await once(command, 'spawn');
  command.stdin.end(sent);
  await once(command.stdout, 'end');
  assert.equal(sha256(Buffer.concat(chunks)), sha256(sent));
});

test('20 MB as a file', async () => {
  const fs = box.filesystem('/home/sprite');
  const sent = crypto.randomBytes(20_000_000);
  await fs.writeFile('large', sent);
  assert.equal((await box.exec('sha256sum large')).stdout, `${sha256(sent)}  large\n`);
  assert.equal(sha256(await fs.readFile('large')), sha256(sent));
});
