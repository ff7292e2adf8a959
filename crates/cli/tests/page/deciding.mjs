// How a person decides about calls: what counts as a decision, and what a request shows.

import { ask, check, equal, hide, open, show, turnEnded } from './browser.mjs';

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
    await hide(page, true);
    await ask('session please');
    await page.waitForFunction(() => document.title === '(1) Runs · Selvedge');
    await hide(page, false);
    await show(page, 'approvals');
    await page.click('.approval .choice:has-text("Deny")');
    await page.click('.approval button[type=submit]');
    await page.waitForFunction(() => document.title === 'Approvals · Selvedge');
  },

  /** A session with a folder, settings and a worktree asks about a patch with its diff. */
  async asked_with_diff() {
    const [folder, other] = await ask('two folders');
    const page = await open();
    await page.click('text=New session');
    const list = page.getByLabel('Folder', { exact: true });
    await list.locator('option >> nth=1').waitFor({ state: 'attached' });
    equal(await list.locator('option').allTextContents(), [folder, other].sort(), 'the folders');
    await list.selectOption(folder);
    await page.waitForSelector('dialog option[value=careful]', { state: 'attached' });
    await page.getByLabel('Settings').selectOption('careful');
    await page.getByLabel('Work in a separate copy of the folder').check();
    await page.fill('dialog textarea', 'patch');
    await page.click('text=Create session');
    await page.waitForSelector('.session-facts:has-text("environment careful")');
    const card = page.locator('sv-transcript .approval');
    await card.locator('.diff .add', { hasText: 'one new line' }).waitFor();
    await card.locator('.tool', { hasText: 'applyPatch' }).waitFor();
    await card.locator('.choice', { hasText: 'Approve this call, once' }).click();
    await card.locator('button[type=submit]').click();
    await turnEnded(page, 1);
    await page.waitForSelector('.item.result .decision:has-text("allowed on the web page")');
    // The folder is as it was until the changes are applied.
    equal(await ask('file patched.txt'), null, 'the file before');
    await page.click('.session-head >> text=Changes');
    await page.waitForSelector('dialog h2:has-text("Changes in the worktree")');
    await page.waitForSelector('dialog .diff .add:has-text("one new line")');
    await page.click('text=Apply to the folder');
    await page.waitForSelector('.notice.good:has-text("Applied to the folder: patched.txt.")');
    equal(await ask('file patched.txt'), 'one new line\n', 'the file after');
  },

  /** A request for a web page shows its complete URL. */
  async asked_with_url() {
    const page = await open();
    await ask('session fetch');
    await show(page, 'approvals');
    await page.waitForSelector('.approval .tool:text-is("fetchUrl")');
    const url = 'http://127.0.0.1:9/page?with=a%20query';
    await page.waitForSelector(`.approval .command:has-text("${url}")`);
    await page.click('.approval .choice:has-text("Deny")');
    await page.click('.approval button[type=submit]');
    await page.waitForSelector('text=No call needs approval.');
  },
};
