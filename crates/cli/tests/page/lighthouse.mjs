// Runs Lighthouse on the views of the page: as on a computer, as on a phone, and on loopback with no
// slow connection. Prints the medians, and fails if one is outside of its limit. With
// LIGHTHOUSE_VIEW=health, measures this view only.

import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { ask } from './ask.mjs';

/** Least score of each category, of 100. */
const LEAST_SCORE = 95;
const CATEGORIES = ['performance', 'accessibility', 'best-practices'];
/** How often each view is measured. The median counts. */
const RUNS = 3;
/** On loopback, the first paint comes earlier, and a new browser receives less. */
const LOOPBACK_LIMITS = { 'first-contentful-paint': 200, 'total-byte-weight': 250_000 };
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
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const low = [];

/** Measures a view, and returns the result of each run. */
async function measure(view, config, onlyCategories) {
  const results = [];
  while (results.length < RUNS) {
    // A person who opens the page for the first time has no file of it.
    await devtools.send('Network.clearBrowserCache');
    const options = {
      port: PORT,
      output: 'json',
      logLevel: 'error',
      onlyCategories,
      disableStorageReset: true,
    };
    const { lhr } = await lighthouse(`${base}/#/${view}`, options, config);
    results.push(lhr);
  }
  return results;
}

/** Measures the categories of a view. */
async function measureScores(device, name, view, config) {
  const results = await measure(view, config, CATEGORIES);
  const scores = CATEGORIES.map((category) =>
    median(results.map((lhr) => Math.round(100 * lhr.categories[category].score))),
  );
  console.error(`${device} ${name}: ${CATEGORIES.map((title, at) => `${title} ${scores[at]}`)}`);
  for (const audit of Object.values(results.at(-1).audits)) {
    const isBad = audit.score !== null && audit.score < 0.9;
    if (isBad && ['binary', 'metricSavings', 'numeric'].includes(audit.scoreDisplayMode))
      console.error(`  ${audit.id}: ${audit.displayValue ?? audit.title}`);
  }
  if (scores.some((score) => score < LEAST_SCORE))
    low.push(`${device} ${name}: ${scores}, at least ${LEAST_SCORE}`);
}

/** Measures the first paint and the weight of a view without a slow connection. */
async function measureLoopback(name, view) {
  const settings = { ...desktopConfig.settings, throttlingMethod: 'provided' };
  const results = await measure(view, { ...desktopConfig, settings }, ['performance']);
  for (const [audit, limit] of Object.entries(LOOPBACK_LIMITS)) {
    const value = Math.round(median(results.map(({ audits }) => audits[audit].numericValue)));
    console.error(`loopback ${name}: ${audit} ${value}`);
    if (!(value > 0 && value < limit))
      low.push(`loopback ${name}: ${audit} ${value}, below ${limit}`);
  }
}

let devtools;
try {
  const page = await context.newPage();
  devtools = await context.newCDPSession(page);
  await page.goto(await ask('login'));
  await page.waitForSelector('sv-sessions');
  const session = await ask('session follow');
  await ask('go');
  await ask('wait for the answer');
  const memory = await ask('memory session');
  await ask('session please');
  const { runs } = await page.evaluate(() => fetch('/api/v1/runs').then((answer) => answer.json()));
  /** Names of the views, and their addresses. */
  const views = {
    sessions: 'sessions',
    session: `sessions/${session}`,
    approvals: 'approvals',
    runs: 'runs',
    run: `runs/${runs.at(-1).id}`,
    channels: 'channels/team',
    documents: 'documents',
    memory: 'memory',
    gradient: `memory/${memory}`,
    lessons: 'memory/lessons',
    topics: 'memory/topics',
    health: 'health',
  };
  const wanted = process.env.LIGHTHOUSE_VIEW ?? '';
  if (wanted && !views[wanted])
    throw new Error(`LIGHTHOUSE_VIEW=${wanted} is not one of ${Object.keys(views).join(', ')}`);
  for (const [name, view] of Object.entries(views)) {
    if (wanted && name !== wanted) continue;
    await measureScores('computer', name, view, desktopConfig);
    await measureScores('phone', name, view, undefined);
    await measureLoopback(name, view);
  }
} catch (error) {
  low.push(error.stack);
}
await context.close();
rmSync(profile, { recursive: true, force: true });
if (low.length) console.error(`outside of the limits:\n${low.join('\n')}`);
else console.log('passed');
process.exit(low.length ? 1 : 0);
