// This SDK declares a socket dead after 45 to 60 seconds without a message, and pings do not count for it
// (wire/exec.md §2.7). A silent command must live through that.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import { freshSprite, watch } from './sdk.mjs';

const SILENT = ['-c', 'echo before; sleep 65; echo after; exit 0'];

test('silent commands outlive the watchdog', { timeout: 120_000 }, async (t) => {
  const sprite = await freshSprite(t, 'idle');
  const detached = sprite.createSession('sh', SILENT);
  const detachedRun = watch(detached);
  const { session_id: id } = await detachedRun.message('session_info');
  detached.wsCmd.close();
  await once(detached, 'exit');

  const [plain, terminal, attached, http] = await Promise.all([
    watch(sprite.spawn('sh', SILENT)).end(),
    watch(sprite.spawn('sh', SILENT, { tty: true })).end(),
    watch(sprite.attachSession(id)).end(),
    // Over HTTP the last frames come a second apart: this SDK joins frames that arrive together.
    sprite.execFileHTTP('sh', ['-c', 'echo before; sleep 65; echo after; sleep 1']),
  ]);
  assert.deepEqual(plain, { code: 0, stdout: 'before\nafter\n', stderr: '' });
  assert.deepEqual(terminal, { code: 0, stdout: 'before\r\nafter\r\n', stderr: '' });
  assert.deepEqual(attached, { code: 0, stdout: 'before\r\nafter\r\n', stderr: '' });
  assert.deepEqual(http, { stdout: 'before\nafter\n', stderr: '', exitCode: 0 });
});
