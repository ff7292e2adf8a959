// A browser with the page. A flow asks the Rust test for something with `ask`.

import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

import { ask } from './ask.mjs';

export { ask };

const folder = process.env.SELVEDGE_BROWSER_FOLDER;
const require = createRequire(`${folder}/`);
const { chromium } = require('playwright-core');

/** How long a step may take, in milliseconds. */
const STEP_TIMEOUT_MS = 60_000;

export const base = process.env.SELVEDGE_PAGE_URL;
const axeSource = () => readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

export function check(condition, what) {
  if (!condition) throw new Error(`not true: ${what}`);
}

export function equal(actual, expected, what) {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (left !== right) throw new Error(`${what}: ${left} is not ${right}`);
}

const root = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
const browser = await chromium.launch({
  executablePath: process.env.SELVEDGE_CHROMIUM,
  args: root,
});
const problems = [];

/** Opens a browser of its own, logged in unless `login` is false. */
export async function open({ login = true, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(STEP_TIMEOUT_MS);
  const page = await context.newPage();
  page.on('pageerror', (error) => problems.push(`error in the page: ${error.stack}`));
  page.on('console', (message) => {
    if (/Content Security Policy|Trusted|Refused to/.test(message.text()))
      problems.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(base) && !request.url().startsWith('data:')) {
      problems.push(`request to ${request.url()}`);
    }
  });
  if (login) {
    await page.goto(await ask('login'));
    await page.waitForSelector('sv-sessions');
  } else {
    await page.goto(base);
  }
  return page;
}

/** Opens a view by its address after `#/`. */
export async function show(page, hash) {
  await page.goto(`${base}/#/${hash}`);
}

/** Sends a message to the shown session. */
export async function send(page, text) {
  await page.fill('.composer textarea', text);
  await page.press('.composer textarea', 'Enter');
}

/** Waits until the turn of a session with this number has ended, and its items are shown. */
export async function turnEnded(page, turn) {
  await page.waitForSelector(`sv-session[data-turn="${turn}"]`);
  await page.waitForFunction(() => !document.querySelector('.tail')?.children.length);
}

/** Numbers and texts of the shown items: each number once, in order. */
export async function shownItems(page) {
  const items = await page.$$eval('article.item', (elements) =>
    elements.map((element) => [Number(element.dataset.number), element.getAttribute('aria-label')]),
  );
  const numbers = items.map(([number]) => number);
  equal(
    numbers,
    numbers.map((_, at) => numbers[0] + at),
    'numbers of the items',
  );
  return items.map(([, label]) => label);
}

/** Hides the page as another tab does, which closes its streams, or shows it again. */
export async function hide(page, isHidden) {
  await page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => value });
    document.dispatchEvent(new Event('visibilitychange'));
  }, isHidden);
}

/** Waits until `condition` resolves to true, and fails after the time of a step. */
export async function until(condition, what) {
  const deadline = Date.now() + STEP_TIMEOUT_MS;
  while (!(await condition())) {
    check(Date.now() < deadline, `${what}, in time`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Holds what it is given to: `wait` resolves when `open` is called. */
export function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { open, wait: () => opened };
}

/** Fails if axe-core finds a serious problem in what is shown. */
export async function checkAccessible(page, what) {
  const isLoaded = await page.evaluate(() => Boolean(globalThis.axe));
  if (!isLoaded) await page.evaluate(axeSource());
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations.filter(({ impact }) => ['serious', 'critical'].includes(impact));
  equal(
    serious.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]),
    [],
    what,
  );
  check(passes.length > 5, 'axe-core has checked the page');
}

/** Runs a flow, and ends the process with its result. */
export async function run(flows) {
  const name = process.argv[2];
  try {
    await flows[name]();
    if (problems.length) throw new Error(problems.join('\n'));
    console.log('passed');
  } catch (error) {
    const pages = browser.contexts().flatMap((context) => context.pages());
    for (const page of pages) {
      const text = await page.evaluate(() => document.body.innerText).catch(() => '');
      console.error(`--- ${page.url()}\n${text.slice(0, 4000)}`);
    }
    console.error(error.stack, problems.join('\n'));
    process.exitCode = 1;
  }
  await browser.close();
  process.exit();
}
