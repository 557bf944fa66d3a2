// Terminals and sessions: resize, leave, list, attach with replay, kill, ports (wire/exec.md §2.2, §4, §5).

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import { APIError, freshSprite, watch } from './sdk.mjs';

// The command waits at a named pipe, so a test decides when it goes on: no clocks.
const GATED = ['-c', 'mkfifo gate; echo one; echo uno >&2; read line < gate; echo two $line; exit 7'];
const openGate = (sprite) => sprite.execFile('sh', ['-c', 'echo open > gate']);

/** Closes the command's socket and nothing else. */
async function leave(command) {
  command.wsCmd.close();
  await once(command, 'exit');
}

test('a terminal has its size from the start and follows a resize', async (t) => {
  const sprite = await freshSprite(t, 'tty');
  const script = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 600 & wait; done";
  const command = sprite.spawn('sh', ['-c', script], { tty: true, rows: 40, cols: 120 });
  const run = watch(command);
  await run.printed('ready\r\n');
  assert.deepEqual(
    (({ type, rows, cols, tty, is_owner }) => ({ type, rows, cols, tty, is_owner }))(run.seen.messages[0]),
    { type: 'session_info', rows: 40, cols: 120, tty: true, is_owner: true },
  );
  command.resize(99, 33);
  assert.deepEqual(await run.end(), { code: 0, stdout: '40 120\r\nready\r\n33 99\r\n', stderr: '' });
});

test('without a size a terminal is 24 by 80', async (t) => {
  const sprite = await freshSprite(t, 'tty');
  assert.equal((await watch(sprite.spawn('stty', ['size'], { tty: true })).end()).stdout, '24 80\r\n');
});

test('keys reach a terminal raw', async (t) => {
  const sprite = await freshSprite(t, 'tty');
  const command = sprite.spawn('sh', ['-c', "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 600 & wait; done"], { tty: true });
  const run = watch(command);
  await run.printed('ready\r\n');
  command.stdin.write('\x03');
  assert.deepEqual(await run.end(), { code: 0, stdout: 'ready\r\n^Ccaught\r\n', stderr: '' });
});

test('a session is left, listed, attached with its whole output, and ends', async (t) => {
  const sprite = await freshSprite(t, 'session');
  const first = sprite.createSession('sh', GATED);
  const firstRun = watch(first);
  await firstRun.printed('uno\r\n');
  const { session_id: id } = firstRun.seen.messages[0];
  await leave(first);

  const [listed, ...others] = await sprite.listSessions();
  assert.deepEqual(others, []);
  assert.deepEqual([listed.id, listed.command, listed.tty], [id, `sh ${GATED.join(' ')}`, true]);
  assert.ok(Math.abs(Date.now() - listed.created) < 60_000);

  const second = watch(sprite.attachSession(id));
  await second.printed('one\r\nuno\r\n');
  assert.equal(second.seen.messages[0].session_id, id);
  await openGate(sprite);
  const { code, stdout } = await second.end();
  assert.equal(code, 1); // all this SDK can say of 7 on a terminal
  assert.equal(stdout, 'one\r\nuno\r\ntwo open\r\n');
  assert.deepEqual(await sprite.listSessions(), []);
});

test('a detachable command without a terminal outlives its grace and replays each stream', async (t) => {
  const sprite = await freshSprite(t, 'session');
  const first = sprite.spawn('sh', GATED, { detachable: true });
  const firstRun = watch(first);
  await firstRun.until((seen) => seen.stderr.includes('uno\n'));
  const [{ id, tty }] = await sprite.listSessions();
  assert.equal(tty, false);
  await leave(first);
  await openGate(sprite);
  const attached = watch(sprite.attachSession(id));
  assert.deepEqual(await attached.end(), { code: 7, stdout: 'one\ntwo open\n', stderr: 'uno\n' });
});

test('max_run_after_disconnect is kept', async (t) => {
  const sprite = await freshSprite(t, 'session');
  const command = sprite.spawn('sh', ['-c', 'echo $$; exec sleep 600'], { maxRunAfterDisconnect: '500ms' });
  const run = watch(command);
  await run.printed('\n');
  await leave(command);
  // `tail --pid` ends when that process does.
  await sprite.exec(`tail --pid ${run.seen.stdout.toString().trim()} -f /dev/null`);
  assert.deepEqual(await sprite.listSessions(), []);
});

test('an unknown session cannot be attached', async (t) => {
  const sprite = await freshSprite(t, 'session');
  await assert.rejects(watch(sprite.attachSession('s999999')).end(), /WebSocket/);
});

test('kill tells what it does', async (t) => {
  const sprite = await freshSprite(t, 'kill');
  const command = sprite.spawn('sh', ['-c', 'sleep 600 & echo $!; wait']);
  const run = watch(command);
  await run.printed('\n');
  const [{ id }] = await sprite.listSessions();
  const events = [];
  for await (const event of await sprite.killSession(id)) events.push(event);
  assert.deepEqual(events.map((event) => event.type), ['signal', 'exited', 'complete']);
  assert.equal(events[0].signal, 'SIGTERM');
  assert.equal(typeof events[0].pid, 'number');
  assert.equal(events[2].exitCode, 143);
  assert.equal((await run.end()).code, 143);
  await assert.rejects(sprite.execFile('test', ['-d', `/proc/${run.seen.stdout.toString().trim()}`]));
  // A second kill gets the full answer again (wire/fountain.md §4.8).
  const again = [];
  for await (const event of await sprite.killSession(id)) again.push(event);
  assert.deepEqual(again.map((event) => event.type), ['signal', 'exited', 'complete']);
  assert.equal(again[2].exitCode, 143);
  await assert.rejects(sprite.killSession('s999999'), (error) => error instanceof APIError && error.statusCode === 404);
});

test('kill escalates after its timeout', async (t) => {
  const sprite = await freshSprite(t, 'kill');
  const run = watch(sprite.spawn('sh', ['-c', "trap '' TERM; echo up; while :; do sleep 1; done"]));
  await run.printed('up\n');
  const [{ id }] = await sprite.listSessions();
  const events = [];
  for await (const event of await sprite.killSession(id, 'TERM', '300ms')) events.push(event);
  assert.deepEqual(events.map((event) => event.type), ['signal', 'timeout', 'killed', 'complete']);
  assert.equal(events[3].exitCode, 137);
  assert.equal((await run.end()).code, 137);
});

test('a listening port is announced and its end too', { timeout: 60_000 }, async (t) => {
  const sprite = await freshSprite(t, 'port');
  const script = [
    'import os, socket',
    's = socket.create_server(("127.0.0.1", 0))',
    'print("port", s.getsockname()[1], "pid", os.getpid(), flush=True)',
    'input()', 's.close()', 'input()',
  ].join('\n');
  const command = sprite.spawn('python3', ['-c', script], { tty: true });
  const run = watch(command);
  const opened = await run.message('port_opened');
  const [, port, pid] = /port (\d+) pid (\d+)/.exec(run.seen.stdout.toString());
  assert.deepEqual(opened, { type: 'port_opened', port: Number(port), address: '127.0.0.1', pid: Number(pid) });
  command.stdin.write('\n');
  const closed = await run.message('port_closed');
  assert.deepEqual([closed.port, closed.address], [Number(port), '127.0.0.1']);
  command.stdin.write('\n');
  assert.equal((await run.end()).code, 0);
});
