// Texts that try to run code, to hide what they are, and to break the page.

import { ask, check, equal, open, send, show, turnEnded } from './browser.mjs';

/**
 * Fails if a text or a label of the page has escape sequences, or changes its direction. Isolates
 * may be in Markdown: they end with their paragraph, and Arabic and Hebrew use them.
 */
async function checkVisible(page, what) {
  const hidden = await page.evaluate(() => {
    const escapes = /.{0,40}[\u001b\u009b\u202a-\u202e].{0,40}/u;
    const allHidden = /.{0,40}[\u001b\u009b\u202a-\u202e\u2066-\u2069].{0,40}/u;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [document.body.textContent.match(escapes)?.[0]];
    while (texts.nextNode()) {
      const { data, parentElement } = texts.currentNode;
      if (!parentElement.closest('.markdown')) found.push(data.match(allHidden)?.[0]);
    }
    for (const { ariaLabel, title } of document.querySelectorAll('[aria-label], [title]'))
      found.push(ariaLabel?.match(allHidden)?.[0], title?.match(allHidden)?.[0]);
    return found.filter((text) => text);
  });
  equal(hidden, [], `hidden characters of ${what}`);
}

export const hostileFlows = {
  /** A transcript that tries to run code, to load from other servers, and to break the page. */
  async hostile() {
    const page = await open();
    const session = await ask('session hostile');
    await show(page, `sessions/${session}`);
    await turnEnded(page, 1);
    await page.waitForSelector('.item.assistant:has-text("the end")');
    for (const [view, element] of [
      [`sessions/${session}`, 'sv-session'],
      ['sessions', 'sv-sessions li'],
      ['approvals', 'sv-approvals'],
      ['runs', 'sv-runs'],
      ['memory', 'sv-memory'],
      [`sessions/${session}`, 'sv-session'],
    ]) {
      await show(page, view);
      await page.waitForSelector(element);
    }
    await page.waitForSelector('.item.assistant:has-text("the end")');
    equal(await page.evaluate(() => window.hacked ?? null), null, 'code that ran');
    const found = await page.$$eval(
      'sv-transcript :is(script, img, svg, iframe, style, object, link, form, [onerror], [onload], [style])',
      (elements) => elements.map((element) => element.outerHTML.slice(0, 200)),
    );
    equal(
      found.filter((html) => !html.startsWith('<div class="chunk"')),
      [],
      'elements of the transcript',
    );
    equal(
      await page.$$eval('sv-transcript .item a[href]', (links) =>
        links
          .map((link) => new URL(link.href).protocol)
          .filter((protocol) => !['http:', 'https:', 'mailto:'].includes(protocol)),
      ),
      [],
      'links',
    );
    const text = await page.textContent('sv-transcript');
    check(text.includes('<script>window.hacked'), 'HTML is shown as text');
    check(
      text.includes('[U+202E]') && text.includes('\u241b[31m'),
      'hidden characters are visible',
    );
    const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    check(!isWide, 'the page is not wider than the window');
    // A command with a line of 5 MB, and a long answer in one line.
    await send(page, 'long line');
    await page.waitForSelector('.item.assistant button:has-text("Show more")');
    await page.click('.item.result .call summary');
    await page.waitForSelector('.item.result .call-body >> text=Exit code 0');
    await send(page, 'hello');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
  },

  /** Hidden characters are visible in calls, their output, requests, channels and documents. */
  async hidden_characters() {
    const page = await open();
    const session = await ask('session hidden');
    await show(page, 'approvals');
    const card = page.locator('.approval');
    await card.locator('.command', { hasText: 'rm -rf' }).waitFor();
    await card.locator('blockquote', { hasText: 'quite' }).waitFor();
    await checkVisible(page, 'a request');
    await show(page, `sessions/${session}`);
    await page.waitForSelector('sv-transcript .approval');
    await page.waitForSelector('.call-args:has-text("not [U+202E] red")');
    await checkVisible(page, 'a session that waits');
    await page.click('.approval .choice:has-text("Deny")');
    await page.click('.approval button[type=submit]');
    await turnEnded(page, 1);
    const call = page.locator('.item.result .call').first();
    await call.locator('.call-args:has-text("not [U+202E] red")').waitFor();
    await call.locator('summary').click();
    await call.locator('.call-body .text:has-text("\u241b[31mnot [U+202E] red")').waitFor();
    await checkVisible(page, 'a call');
    await page.click('.item.script a[href^="#/runs/"]');
    await page.waitForSelector('.lanes .bar');
    await page.locator('sv-run .call summary').first().click();
    await page.waitForSelector('sv-run .call-body .text:has-text("\u241b[31mnot [U+202E] red")');
    await checkVisible(page, 'a run');
    await show(page, 'channels/hidden');
    await page.fill('.composer textarea', 'turned \u202e around');
    await page.press('.composer textarea', 'Enter');
    await page.waitForSelector('.post:has-text("turned [U+202E] around")');
    await checkVisible(page, 'a channel');
    await ask('hidden document');
    await show(page, 'documents');
    await page.waitForSelector('td.id:has-text("issues/[U+202E]dm.md")');
    await checkVisible(page, 'the documents');
    await page.click('td a:has-text("[U+202E]dm")');
    await page.waitForSelector('h2:has-text("issues/[U+202E]dm.md")');
    await page.waitForSelector('.preview:has-text("hidden")');
    await checkVisible(page, 'a document');
    await show(page, 'memory/lessons');
    await page.click('text=Add a lesson');
    await page.waitForSelector('form select option >> nth=5', { state: 'attached' });
    await page.getByLabel('Text').fill('Never\u2066 ask\u202e \u009b31mtwice');
    await page.click('form button:text-is("Add")');
    await page.waitForSelector('article.card h3:has-text("Never[U+2066] ask[U+202E] [U+009B]")');
    await checkVisible(page, 'the lessons');
    await page.click('article.card button:text-is("Edit")');
    await page.waitForSelector('article.card form');
    await checkVisible(page, 'the editor of a lesson');
    await show(page, 'memory/topics');
    await page.waitForSelector('sv-memory .memory-content > *');
    await checkVisible(page, 'the topics');
    await show(page, 'memory/search/never%20red');
    await page.waitForSelector('article[aria-label^="Lesson Never"]');
    await checkVisible(page, 'a search of the memory');
    await show(page, `memory/${session}`);
    await page.waitForSelector('.level-columns section');
    await checkVisible(page, 'the memory of a session');
    // Without a document, the error names its path.
    await show(page, `documents/${encodeURIComponent('issues/\u202eno.md')}/none`);
    await page.waitForSelector('.error');
    await checkVisible(page, 'an error');
  },
};
