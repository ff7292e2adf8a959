// What people do while something changes: a command writes, an answer is slow, a connection breaks.

import {
  ask,
  check,
  equal,
  open,
  show,
  turnEnded,
} from './browser.mjs';

/** The name and the text of what has the focus. */
const focused = (page) =>
  page.evaluate(() => [document.activeElement.localName, document.activeElement.textContent]);

export const changingFlows = {
  /** A press takes a moment, in which a command writes: it arrives, and the focus stays. */
  async busy_script() {
    const page = await open();
    const session = await ask('session count');
    await show(page, `sessions/${session}`);
    const output = (text) => page.waitForSelector(`.call-body pre:text-matches("${text}\\\\b")`);
    await output('line 3');
    const link = '.item.script a:text-is("timeline")';
    await page.focus(link);
    const lines = (await page.textContent('.call-body pre')).split('\n').length;
    await output(`line ${lines + 5}`);
    equal(await focused(page), ['a', 'timeline'], 'the focus while a command writes');
    await page.click(link, { delay: 150 });
    await page.waitForSelector('sv-run .live-output:has-text("line 3")');
    // Bars grow twice a second.
    await page.click('.lanes .bar', { delay: 1200 });
    await page.waitForSelector('sv-run .call summary:focus');
    // The list of sessions changes while a row is pressed.
    await show(page, 'sessions');
    await page.hover(`.rows a[data-entry="${session}"]`);
    await page.mouse.down();
    await ask('session hello');
    const list = /\/api\/v1\/sessions\?/;
    const listed = async () => (await page.waitForResponse(list)).finished();
    await listed();
    await listed();
    await page.mouse.up();
    await page.waitForSelector('.item.script');
    check(page.url().endsWith(session), page.url());
    await page.waitForSelector('.rows li >> nth=1');
    // What a person opens stops the following, which can be continued.
    const call = page.locator('.item.script .call summary').first();
    await call.click();
    await call.click();
    await page.waitForSelector('button.jump:has-text("Newest")');
    await page.click('button.jump');
    // The call that has the focus ends.
    await call.focus();
    await ask('go');
    await turnEnded(page, 1);
    equal(await focused(page), ['a', 'timeline'], 'the focus after the script');
  },
};
