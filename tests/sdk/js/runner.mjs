// One `fountain runner` in a folder of its own: started, awaited, stopped in order, and searched for leftovers.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';

export const TOKEN = 'sdk-suite-token';
const BINARY = process.env.FOUNTAIN_BIN ?? path.resolve(import.meta.dirname, '../../../target/debug/fountain');
const LISTENING = /^fountain runner listening on (http:\/\/127\.0\.0\.1:\d+)$/;
const START_MS = 30_000;
const STOP_MS = 60_000;

/** Starts a runner and resolves when it listens. */
export async function startRunner() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'js-'));
  const state = path.join(folder, 'state');
  const log = path.join(folder, 'runner.log');
  fs.mkdirSync(path.join(folder, 'run'), { mode: 0o700 });
  // Nothing of the environment of whoever runs the tests may change what the daemon does.
  const env = {
    PATH: process.env.PATH,
    HOME: folder,
    XDG_RUNTIME_DIR: path.join(folder, 'run'),
    FOUNTAIN_RUNNER_TOKEN: TOKEN,
  };
  const child = spawn(BINARY, ['runner', '--listen', '127.0.0.1:0', '--state', state], {
    env,
    stdio: ['ignore', 'pipe', fs.openSync(log, 'w')],
  });
  const exited = once(child, 'exit');
  const baseURL = await new Promise((resolve, reject) => {
    const fail = () => {
      clearTimeout(timer);
      child.kill('SIGKILL');
      const text = fs.readFileSync(log, 'utf8');
      fs.rmSync(folder, { recursive: true });
      reject(new Error(`the runner did not start; its log:\n${text}`));
    };
    const timer = setTimeout(fail, START_MS);
    child.once('exit', fail);
    createInterface({ input: child.stdout }).on('line', (line) => {
      const match = LISTENING.exec(line.trim());
      if (!match) return;
      clearTimeout(timer);
      child.off('exit', fail);
      resolve(match[1]);
    });
  });

  /** Ends agents and runner as an operator would; resolves to what is wrong or left afterwards. */
  async function stop() {
    const wrong = [];
    const stopped = spawnSync(BINARY, ['stop', '--all', '--state', state], { env, timeout: STOP_MS });
    if (stopped.status !== 0) {
      wrong.push(`\`fountain stop --all\` ended with ${stopped.status ?? stopped.signal}: ${stopped.stderr}`);
    }
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
    const [code, signal] = await exited;
    clearTimeout(late);
    if (code !== 0) wrong.push(`the runner ended with ${code ?? signal}`);
    wrong.push(...processesOf(folder).map((line) => `left running: ${line}`));
    const mounts = fs.readFileSync('/proc/mounts', 'utf8').split('\n');
    wrong.push(...mounts.filter((line) => line.includes(folder)).map((line) => `left mounted: ${line}`));
    if (wrong.length) wrong.push(`the end of the runner's log:\n${fs.readFileSync(log, 'utf8').slice(-4000)}`);
    fs.rmSync(folder, { recursive: true });
    return wrong;
  }

  return { baseURL, stop };
}

/** Every process that names `folder` in its command line or works below it. */
function processesOf(folder) {
  return fs.readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && pid !== String(process.pid)).flatMap((pid) => {
    try {
      const command = fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
      const directory = fs.readlinkSync(`/proc/${pid}/cwd`);
      return command.includes(folder) || directory.startsWith(folder) ? [`${pid} ${command} (in ${directory})`] : [];
    } catch {
      return []; // it ended while we looked
    }
  });
}
