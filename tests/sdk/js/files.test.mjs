// The SDK's filesystem and its watcher against the file routes (wire/rest.md §2).

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FilesystemError, freshSprite } from './sdk.mjs';

const failure = (code) => (error) => error instanceof FilesystemError && error.code === code;

async function home(t) {
  const sprite = await freshSprite(t, 'files');
  return { sprite, fs: sprite.filesystem('/home/sprite') };
}

test('files come back as they were written', async (t) => {
  const { fs } = await home(t);
  const every = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  await fs.writeFile('deep/er/file.bin', every);
  assert.deepEqual(await fs.readFile('deep/er/file.bin'), every);
  await fs.writeFile('/home/sprite/zwölf → +&%20', 'text', { mode: 0o600 });
  assert.equal(await fs.readFile('zwölf → +&%20', 'utf8'), 'text');
  const stat = await fs.stat('zwölf → +&%20');
  assert.deepEqual([stat.size, stat.mode, stat.isFile(), stat.isDirectory()], [4, 0o600, true, false]);
  assert.ok(Math.abs(Date.now() - stat.mtime) < 60_000);
  await fs.writeFile('empty', '');
  assert.equal((await fs.readFile('empty')).length, 0);
});

test('json and append', async (t) => {
  const { fs } = await home(t);
  await fs.writeJSON('data.json', { a: [1, 'zwölf'] });
  assert.deepEqual(await fs.readJSON('data.json'), { a: [1, 'zwölf'] });
  await fs.appendFile('log', 'one\n');
  await fs.appendFile('log', 'two\n');
  assert.equal(await fs.readFile('log', 'utf8'), 'one\ntwo\n');
});

test('missing files are ENOENT', async (t) => {
  const { fs } = await home(t);
  assert.equal(await fs.exists('missing'), false);
  for (const call of [
    () => fs.readFile('missing'), () => fs.stat('missing'), () => fs.readdir('missing'), () => fs.rm('missing'),
    () => fs.rename('missing', 'x'), () => fs.copyFile('missing', 'x'), () => fs.chmod('missing', 0o600),
    () => fs.rm('missing', { recursive: true }),
  ]) await assert.rejects(call(), failure('ENOENT'));
  await fs.rm('missing', { force: true });
});

test('folders', async (t) => {
  const { fs } = await home(t);
  await fs.mkdir('one');
  assert.deepEqual(await fs.readdir('one'), []);
  await fs.mkdir('a/b/c', { recursive: true });
  await fs.writeFile('a/z.txt', '');
  await fs.writeFile('a/.dot', '');
  await fs.writeFile('a/b/c/deep.txt', '');
  assert.deepEqual(await fs.readdir('a'), ['.dot', 'b', 'z.txt']);
  const entries = await fs.readdir('a', { withFileTypes: true });
  assert.deepEqual(entries.map((entry) => entry.isDirectory()), [false, true, false]);
  assert.deepEqual((await fs.readdir('a', { recursive: true })).sort(), ['.dot', 'b', 'c', 'deep.txt', 'z.txt']);
  assert.deepEqual((await fs.readdir('a', { recursive: true, pattern: '*.txt' })).sort(), ['deep.txt', 'z.txt']);
  await assert.rejects(fs.rm('a'), failure('ENOTEMPTY'));
  await fs.rm('a', { recursive: true });
  assert.equal(await fs.exists('a'), false);
});

test('rename, copy, chmod, chown', async (t) => {
  const { fs, sprite } = await home(t);
  await fs.writeFile('from', 'x');
  await fs.rename('from', 'to');
  assert.equal(await fs.exists('from'), false);
  await fs.copyFile('to', 'copy');
  assert.equal(await fs.readFile('copy', 'utf8'), 'x');
  await fs.writeFile('tree/f', 'y', { mode: 0o755 });
  await assert.rejects(fs.copyFile('tree', 'tree2'), failure('EISDIR'));
  await fs.copyFile('tree', 'tree2', { recursive: true, preserveAttrs: true });
  assert.equal((await fs.stat('tree2/f')).mode, 0o755);
  await fs.chmod('copy', 0o711);
  assert.equal((await fs.stat('copy')).mode, 0o711);
  const uid = Number((await sprite.exec('id -u')).stdout);
  await fs.chown('copy', { uid });
  assert.equal((await sprite.exec('stat -c %u copy')).stdout, `${uid}\n`);
});

test('links show as links', async (t) => {
  const { fs, sprite } = await home(t);
  await sprite.exec('mkdir d');
  await sprite.exec('ln -s /nowhere d/link');
  const [entry] = await fs.readdir('d', { withFileTypes: true });
  assert.deepEqual([entry.name, entry.isSymbolicLink(), entry.isDirectory()], ['link', true, false]);
});

test('kinds and borders', async (t) => {
  const { fs } = await home(t);
  await fs.writeFile('d/f', 'x');
  await assert.rejects(fs.readFile('d'), failure('EISDIR'));
  await assert.rejects(fs.writeFile('d', 'x'), failure('EISDIR'));
  await assert.rejects(fs.writeFile('d/f/g', 'x'), failure('ENOTDIR'));
  await assert.rejects(fs.writeFile('/etc/fountain-sdk-test', 'x'), failure('EACCES'));
  await assert.rejects(fs.writeFile('../../../../etc/fountain-sdk-test', 'x'), failure('EACCES'));
});

test('changes are watched', { timeout: 60_000 }, async (t) => {
  const { fs, sprite } = await home(t);
  await fs.mkdir('w/sub', { recursive: true });
  const watcher = await fs.watch('w', { recursive: true });
  t.after(() => watcher.close());
  assert.deepEqual(await watcher.next(), { type: 'subscribed', paths: ['w'] });
  const next = async (path, event) => {
    for (;;) {
      const message = await watcher.next();
      assert.ok(message, 'the watcher closed');
      if (message.type === 'event' && message.path === path && message.event === event) return message;
    }
  };
  await sprite.execFile('sh', ['-c', 'echo hello > w/sub/file']);
  const created = await next('/home/sprite/w/sub/file', 'create');
  assert.equal(created.isDir, false);
  assert.ok(!Number.isNaN(Date.parse(created.timestamp)));
  assert.equal((await next('/home/sprite/w/sub/file', 'write')).isDir, false);
  await sprite.exec('chmod 600 w/sub/file');
  await next('/home/sprite/w/sub/file', 'chmod');
  await sprite.exec('mkdir w/made');
  assert.equal((await next('/home/sprite/w/made', 'create')).isDir, true);
  await sprite.exec('touch w/made/inside');
  await next('/home/sprite/w/made/inside', 'create');
  await sprite.exec('rm w/sub/file');
  await next('/home/sprite/w/sub/file', 'remove');
});

test('a missing path is an error that keeps the watcher open', { timeout: 60_000 }, async (t) => {
  const { fs } = await home(t);
  const watcher = await fs.watch(['no-such-folder']);
  t.after(() => watcher.close());
  const types = [(await watcher.next()).type];
  if (types[0] === 'subscribed') types.push((await watcher.next()).type);
  assert.equal(types.at(-1), 'error');
  assert.equal(watcher.isClosed(), false);
});
