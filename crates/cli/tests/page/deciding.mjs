// How a person decides about calls: what counts as a decision, and what a request shows.

import { ask, check, equal, open, show } from './browser.mjs';

/** Number of selected decisions. */
const selected = (page) => page.locator('.approval input:checked').count();

/** Requests that the server waits for. */
const waiting = (page) =>
  page.evaluate(async () => {
    const { approvals } = await (await fetch('/api/v1/approvals')).json();
    return approvals.length;
  });

export const decidingFlows = {
  /** Typed words and pasted texts decide nothing, not even if they end with a digit. */
  async typed_words() {
    const page = await open();
    await ask('session please');
    await show(page, 'approvals');
    for (const place of [null, '.approval', '.approval input[value=once]']) {
      await page.reload();
      await page.waitForSelector('.approval');
      if (place) await page.focus(place);
      await page.keyboard.type('step 1');
      equal(await selected(page), 0, `selected by words at ${place}`);
      await page.keyboard.press('Enter');
      equal(await waiting(page), 1, `requests after words at ${place}`);
    }
    // A letter clears a selection; a digit selects again after an arrow key.
    await page.keyboard.press('ArrowDown');
    check(await page.isChecked('input[value=once]'), 'an arrow key selects the first one');
    await page.keyboard.press('2');
    check(await page.isChecked('input[value=similar_calls]'), 'a digit selects after an arrow key');
    await page.keyboard.press('x');
    equal(await selected(page), 0, 'selected after a letter');
    await page.keyboard.press('Tab');
    await page.focus('.approval');
    await page.keyboard.press('1');
    check(await page.isChecked('input[value=once]'), 'a digit selects after Tab');
    await page.evaluate(() =>
      document.activeElement.dispatchEvent(new ClipboardEvent('paste', { bubbles: true })),
    );
    equal(await selected(page), 0, 'selected after a paste');
    await page.keyboard.press('1');
    await page.keyboard.press('Enter');
    equal(await waiting(page), 1, 'requests after a paste and a digit');
    check(await ask('doomed exists'), 'the command has not run');
    // A click selects also then.
    await page.click('.approval .choice:has-text("Deny")');
    await page.click('.approval button[type=submit]');
    await page.waitForSelector('.approval', { state: 'detached' });
    check(await ask('doomed exists'), 'the command has not run');
  },

  /** The title of a hidden tab says that a request waits. */
  async hidden_tab() {
    const page = await open();
    await show(page, 'runs');
    await page.waitForSelector('sv-runs');
    const hide = (isHidden) =>
      page.evaluate((value) => {
        Object.defineProperty(document, 'hidden', { configurable: true, get: () => value });
        document.dispatchEvent(new Event('visibilitychange'));
      }, isHidden);
    await hide(true);
    await ask('session please');
    await page.waitForFunction(() => document.title === '(1) Runs · Selvedge');
    await hide(false);
    await show(page, 'approvals');
    await page.click('.approval .choice:has-text("Deny")');
    await page.click('.approval button[type=submit]');
    await page.waitForFunction(() => document.title === 'Approvals · Selvedge');
  },
};
