// Runs every *.test.mjs of this folder against one runner. Names of files as arguments run only those.
// The last line is `js: N passed, N failed, N skipped`.

import fs from 'node:fs';
import path from 'node:path';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';

import { startRunner } from './runner.mjs';

// A hang is a failure and not a stuck run; the longest test is silent for 65 seconds.
const TEST_TIMEOUT_MS = 180_000;

const chosen = process.argv.slice(2);
const files = fs.readdirSync(import.meta.dirname)
  .filter((name) => name.endsWith('.test.mjs') && (chosen.length === 0 || chosen.includes(name)))
  // The one that waits for a minute starts first, beside all others.
  .sort((a, b) => Number(b.startsWith('idle')) - Number(a.startsWith('idle')))
  .map((name) => path.join(import.meta.dirname, name));

const runner = await startRunner();
process.env.SPRITES_BASE_URL = runner.baseURL;

let counts;
// A failed test may leave a socket open; forceExit keeps that from holding its process.
const events = run({ files, concurrency: 3, timeout: TEST_TIMEOUT_MS, forceExit: true });
events.on('test:summary', (summary) => {
  if (summary.file === undefined) counts = summary.counts;
});
for await (const text of events.compose(new spec())) process.stdout.write(text);

const wrong = await runner.stop();
for (const line of wrong) console.log(`AFTER THE RUN: ${line}`);
const failed = counts.tests - counts.passed - counts.skipped + (wrong.length > 0 ? 1 : 0);
console.log(`js: ${counts.passed} passed, ${failed} failed, ${counts.skipped} skipped`);
process.exitCode = failed > 0 || counts.passed === 0 ? 1 : 0;
