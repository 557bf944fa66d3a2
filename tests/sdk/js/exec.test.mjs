// Commands: spawn, exec, execFile, execFileHTTP; codes, streams, input, environment, signals (wire/exec.md §2, §3, §6, §8).

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';

import {
  APIError, CODES, ExecError, SpritesClient, baseURL, client, freshName, freshSprite, overHTTP, token, watch,
} from './sdk.mjs';

let box;
before(async () => { box = await client.createSprite(freshName('box')); });
after(() => box.delete());

/** What `execFile` and `execFileHTTP` answer: they reject on any code but 0. */
async function outcome(promise) {
  const { stdout, stderr, exitCode } = await promise.catch((error) => {
    assert.ok(error instanceof ExecError, error);
    return error;
  });
  return { stdout, stderr, exitCode };
}

for (const code of CODES) {
  const script = ['-c', `echo out; echo err >&2; exit ${code}`];
  const expected = { stdout: 'out\n', stderr: 'err\n', exitCode: code };

  test(`spawn: exit ${code}`, async () => {
    const command = box.spawn('sh', script);
    const { code: got, stdout, stderr } = await watch(command).end();
    assert.deepEqual({ stdout, stderr, exitCode: got }, expected);
    assert.equal(command.exitCode(), code);
    assert.equal(await command.wait(), code);
  });
  test(`execFile: exit ${code}`, async () => {
    assert.deepEqual(await outcome(box.execFile('sh', script)), expected);
  });
  test(`execFileHTTP: exit ${code}`, async () => {
    await overHTTP(async () => assert.deepEqual(await outcome(box.execFileHTTP('sh', script)), expected));
  });
  test(`terminal: exit ${code}`, async () => {
    // This SDK knows a terminal's end only by its close code: 0 or not 0.
    const run = watch(box.spawn('sh', script, { tty: true }));
    assert.deepEqual(await run.end(), { code: code === 0 ? 0 : 1, stdout: 'out\r\nerr\r\n', stderr: '' });
    assert.deepEqual(run.seen.messages.at(-1), { type: 'exit', exit_code: code, code });
  });
}

test('exec splits a line at its spaces', async () => {
  assert.deepEqual(await box.exec('echo  hello   world'), { stdout: 'hello world\n', stderr: '', exitCode: 0 });
});

test('unknown programs, unrunnable files and missing folders', async () => {
  await box.exec('touch plain');
  const check = async (run) => {
    const missing = await outcome(run('no-such-program'));
    assert.equal(missing.exitCode, 127);
    assert.match(missing.stderr, /no-such-program.*\n$/);
    assert.equal((await outcome(run('./plain'))).exitCode, 126);
    const folder = await outcome(run('true', [], { cwd: '/no/such/folder' }));
    assert.equal(folder.exitCode, 1);
    assert.match(folder.stderr, /\/no\/such\/folder.*no such file or directory/i);
  };
  await check(box.execFile.bind(box));
  await overHTTP(() => check(box.execFileHTTP.bind(box)));
});

test('input reaches the command and ends', async () => {
  const command = box.spawn('cat');
  const run = watch(command);
  await once(command, 'spawn');
  command.stdin.write('one\n');
  await run.printed('one\n');
  command.stdin.end(Buffer.from([0, 255, 10]));
  await run.end();
  assert.deepEqual(run.seen.stdout, Buffer.from([...Buffer.from('one\n'), 0, 255, 10]));
});

test('input over HTTP is the body', () => overHTTP(async () => {
  assert.equal((await box.execFileHTTP('cat', [], { input: 'zwölf→' })).stdout, 'zwölf→');
  assert.equal((await box.execFileHTTP('cat', [], { input: new Uint8Array() })).stdout, '');
  assert.equal((await box.execFileHTTP('cat')).stdout, '');
}));

test('arguments, environment and folder arrive as they were sent', async () => {
  const args = ['a b', '', '+', '%20', 'a&b=c', '\'"\\$`', 'zwölf→', 'line\nbreak', '-n', '*'];
  const env = { PLUS: 'a+b c', PERCENT: '100%20', EQUALS: 'a=b', EMPTY: '', UNI: 'zwölf→' };
  const script = 'for arg in "$@"; do printf "%s|" "$arg"; done; printf "%s|" "$PLUS" "$PERCENT" "$EQUALS" "$EMPTY" "$UNI"; pwd';
  const expected = [...args, ...Object.values(env)].map((value) => `${value}|`).join('') + '/tmp\n';
  const options = { env, cwd: '/tmp' };
  const argv = ['-c', script, 'sh', ...args];
  assert.equal((await box.execFile('sh', argv, options)).stdout, expected);
  await overHTTP(async () => assert.equal((await box.execFileHTTP('sh', argv, options)).stdout, expected));
});

test('bytes come undecoded', async () => {
  const { stdout } = await box.execFile('printf', ['\\000\\377\\200a'], { encoding: 'buffer' });
  assert.deepEqual(stdout, Buffer.from([0, 255, 128, 97]));
});

test('streams stay apart and whole', async () => {
  const { stdout, stderr } = await box.execFile('sh', ['-c', 'for i in $(seq 2000); do echo out $i; echo err $i >&2; done']);
  const lines = (word) => Array.from({ length: 2000 }, (_, i) => `${word} ${i + 1}\n`).join('');
  assert.equal(stdout, lines('out'));
  assert.equal(stderr, lines('err'));
});

test('fast commands lose nothing', async () => {
  for (let i = 0; i < 100; i++) {
    assert.deepEqual(await box.exec(`echo ${i}`), { stdout: `${i}\n`, stderr: '', exitCode: 0 });
  }
});

test('sixty at once', async () => {
  const answers = await Promise.all(Array.from({ length: 60 }, (_, i) => outcome(box.execFile('sh', ['-c', `echo ${i}; exit ${i}`]))));
  assert.deepEqual(answers, answers.map((_, i) => ({ stdout: `${i}\n`, stderr: '', exitCode: i })));
});

test('a full buffer kills the command', async () => {
  await assert.rejects(box.execFile('sh', ['-c', 'echo $$ > pid; exec yes'], { maxBuffer: 1000 }), /maxBuffer exceeded/);
  const pid = (await box.exec('cat pid')).stdout.trim();
  // `tail --pid` ends when that process does.
  await box.exec(`tail --pid ${pid} -f /dev/null`);
});

for (const [signal, code] of [['SIGTERM', 143], ['INT', 130], ['KILL', 137], ['hup', 129]]) {
  test(`signal ${signal}`, async () => {
    const command = box.spawn('sh', ['-c', 'echo up; exec sleep 600']);
    const run = watch(command);
    await run.printed('up\n');
    command.kill(signal);
    assert.equal((await run.end()).code, code);
  });
}

test('with control mode on, this SDK is refused control and runs each command once', async () => {
  // It would run every failing command twice over a control socket (wire/exec.md §7.5).
  const sprite = new SpritesClient(token, { baseURL, controlMode: true }).sprite(box.name);
  await assert.rejects(sprite.getControlConnection(), /WebSocket/);
  assert.equal((await outcome(sprite.execFile('sh', ['-c', 'echo ran >> runs; exit 7']))).exitCode, 7);
  assert.equal((await sprite.exec('cat runs')).stdout, 'ran\n');
});

describe('refusals', () => {
  test('an unknown sprite', async () => {
    const ghost = client.sprite(freshName('ghost'));
    await assert.rejects(ghost.execFile('true'), /WebSocket/);
    await assert.rejects(ghost.execFileHTTP('true'), (error) =>
      error instanceof APIError && error.statusCode === 404 && typeof error.errorCode === 'string');
  });
  test('a wrong token', async () => {
    const sprite = new SpritesClient('wrong-token', { baseURL }).sprite(box.name);
    await assert.rejects(sprite.execFile('true'), /WebSocket/);
    await assert.rejects(sprite.execFileHTTP('true'), (error) => error instanceof APIError && error.statusCode === 401);
  });
  test('a deleted sprite', async () => {
    const sprite = await client.createSprite(freshName('gone'));
    const run = watch(sprite.spawn('sh', ['-c', 'echo up; exec sleep 600']));
    await run.printed('up\n');
    await sprite.delete();
    assert.ok([137, 143].includes((await run.end()).code));
    await assert.rejects(sprite.execFile('true'), /WebSocket/);
  });
});

test('HTTP exec can be given up', async (t) => {
  const sprite = await freshSprite(t, 'giveup');
  await assert.rejects(sprite.execFileHTTP('sleep', ['600'], { timeout: 500 }), { name: 'TimeoutError' });
});
