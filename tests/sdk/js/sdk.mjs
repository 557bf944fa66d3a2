// The installed SDK, a client for the runner under test, and what several test files ask of them.

import crypto from 'node:crypto';
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';

import { TOKEN } from './runner.mjs';

// The SDK is installed below target/, out of reach of a bare import.
const sdk = await import(pathToFileURL(process.env.SPRITES_JS_SDK).href);

export const { SpritesClient, APIError, ExecError, FilesystemError } = sdk;
export const baseURL = process.env.SPRITES_BASE_URL;
export const token = TOKEN;
export const client = new SpritesClient(TOKEN, { baseURL });

export const CODES = [0, 1, 2, 42, 126, 127, 128, 130, 137, 143, 255];

/** A sprite name that nothing else in this run uses. */
export const freshName = (stem = 'js') => `${stem}-${process.pid}-${++freshName.count}`;
freshName.count = 0;

/** A sprite that is deleted after test (or suite) `t`. */
export async function freshSprite(t, stem) {
  const sprite = await client.createSprite(freshName(stem));
  t.after(() => sprite.delete());
  return sprite;
}

/** Everything a spawned command prints, its exit code, and a way to wait for a text in its output. */
export function watch(command) {
  const seen = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0), messages: [] };
  const waiting = new Set();
  const wake = () => waiting.forEach((check) => check());
  for (const name of ['stdout', 'stderr']) {
    command[name].on('data', (chunk) => {
      seen[name] = Buffer.concat([seen[name], chunk]);
      wake();
    });
  }
  command.on('message', (message) => {
    seen.messages.push(message);
    wake();
  });
  const ended = new Promise((resolve, reject) => {
    command.once('exit', resolve);
    command.on('error', reject); // the SDK may report one failure twice
  });
  ended.catch(() => {});
  const drained = Promise.all([once(command.stdout, 'end'), once(command.stderr, 'end')]);
  const until = (condition) => Promise.race([
    new Promise((resolve) => {
      const check = () => {
        const value = condition(seen);
        if (!value) return;
        waiting.delete(check);
        resolve(value);
      };
      waiting.add(check);
      check();
    }),
    ended.then((code) => {
      if (!condition(seen)) throw new Error(`the command ended with ${code} too early: ${JSON.stringify(text(seen))}`);
    }),
  ]);
  return {
    seen,
    until,
    printed: (wanted) => until(() => seen.stdout.includes(wanted)),
    message: (type) => until(() => seen.messages.find((message) => message.type === type)),
    /** Exit code and all output. */
    end: async () => {
      const code = await ended;
      await drained;
      return { code, ...text(seen) };
    },
  };
}

const text = ({ stdout, stderr }) => ({ stdout: stdout.toString(), stderr: stderr.toString() });

/**
 * `execFileHTTP` takes whatever one TCP read brings for one frame, so on a busy machine it can misread a correct answer
 * (wire/exec.md §6). A server that does not pause between frames fails every try; the framing itself is held to the
 * byte by the Python suite.
 */
export async function overHTTP(attempt) {
  for (let tries = 5; ; tries--) {
    try {
      return await attempt();
    } catch (error) {
      if (tries === 1) throw error;
    }
  }
}

export const sha256 = (data) => crypto.createHash('sha256').update(data).digest('hex');

/** A plain HTTP call, for what no method of the SDK reaches. */
export const api = (method, route, options = {}) =>
  fetch(baseURL + route, { method, ...options, headers: { Authorization: `Bearer ${TOKEN}`, ...options.headers } });
