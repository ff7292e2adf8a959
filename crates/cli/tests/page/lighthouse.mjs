// Runs Lighthouse on the views of the page, as on a computer and as on a phone, prints the scores,
// and fails if one is too low. With LIGHTHOUSE_VIEW=health, measures this view only.

import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { ask } from './ask.mjs';

/** Least score of each category, of 100. */
const LEAST_SCORE = 95;
const CATEGORIES = ['performance', 'accessibility', 'best-practices'];
/** Port at which Lighthouse finds the browser. */
const PORT = 19_222;

const base = process.env.SELVEDGE_PAGE_URL;
const { chromium } = createRequire(`${process.env.SELVEDGE_BROWSER_FOLDER}/`)('playwright-core');
const found = createRequire(`${process.env.SELVEDGE_LIGHTHOUSE}/`).resolve('lighthouse');
const { default: lighthouse, desktopConfig } = await import(pathToFileURL(found));

const profile = mkdtempSync(join(tmpdir(), 'selvedge-lighthouse-'));
const root = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
// Lighthouse opens a tab of its own, which has the cookie of the default context only.
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.SELVEDGE_CHROMIUM,
  args: [...root, `--remote-debugging-port=${PORT}`],
});
const low = [];
try {
  const page = await context.newPage();
  await page.goto(await ask('login'));
  await page.waitForSelector('sv-sessions');
  const session = await ask('session follow');
  await ask('go');
  await ask('wait for the answer');
  const memory = await ask('memory session');
  await ask('session please');
  const { runs } = await page.evaluate(() => fetch('/api/v1/runs').then((answer) => answer.json()));
  const views = [
    'sessions',
    `sessions/${session}`,
    'approvals',
    'runs',
    `runs/${runs.at(-1).id}`,
    'channels/team',
    'documents',
    'memory',
    `memory/${memory}`,
    'memory/lessons',
    'memory/topics',
    'health',
  ].filter((view) => [undefined, view].includes(process.env.LIGHTHOUSE_VIEW));
  for (const [device, config] of [
    ['computer', desktopConfig],
    ['phone', undefined],
  ]) {
    for (const view of views) {
      const options = {
        port: PORT,
        output: 'json',
        logLevel: 'error',
        onlyCategories: CATEGORIES,
        disableStorageReset: true,
      };
      const { lhr } = await lighthouse(`${base}/#/${view}`, options, config);
      const scores = CATEGORIES.map((name) => Math.round(100 * lhr.categories[name].score));
      console.error(`${device} ${view}: ${CATEGORIES.map((name, at) => `${name} ${scores[at]}`)}`);
      for (const audit of Object.values(lhr.audits)) {
        const isBad = audit.score !== null && audit.score < 0.9;
        if (isBad && ['binary', 'metricSavings', 'numeric'].includes(audit.scoreDisplayMode))
          console.error(`  ${audit.id}: ${audit.displayValue ?? audit.title}`);
      }
      if (scores.some((score) => score < LEAST_SCORE)) low.push(`${device} ${view}: ${scores}`);
    }
  }
} catch (error) {
  low.push(error.stack);
}
await context.close();
rmSync(profile, { recursive: true, force: true });
if (low.length) console.error(`below ${LEAST_SCORE}:\n${low.join('\n')}`);
else console.log('passed');
process.exit(low.length ? 1 : 0);
