// What people do while something changes: a command writes, an answer is slow, a connection breaks.

import {
  ask,
  check,
  equal,
  gate,
  open,
  send,
  show,
  shownItems,
  turnEnded,
} from './browser.mjs';

/** The name and the text of what has the focus. */
const focused = (page) =>
  page.evaluate(() => [document.activeElement.localName, document.activeElement.textContent]);

/** Holds requests that post to an address, and counts them. */
async function holdPosts(page, address) {
  const [arrived, released] = [gate(), gate()];
  const held = { count: 0, arrived: arrived.wait, release: released.open };
  await page.route(address, async (route) => {
    if (route.request().method() !== 'POST') return route.continue();
    held.count += 1;
    arrived.open();
    await released.wait();
    return route.continue();
  });
  return held;
}

/** Holds the first answer from an address until `release` is called. */
async function holdAnswer(page, address) {
  const [arrived, released, done] = [gate(), gate(), gate()];
  let isFirst = true;
  await page.route(address, async (route) => {
    if (!isFirst) return route.continue();
    isFirst = false;
    const response = await route.fetch();
    arrived.open();
    await released.wait();
    await route.fulfill({ response });
    return done.open();
  });
  return { arrived: arrived.wait, release: released.open, done: done.wait };
}

/** Counts the answers that the page has read, and what they changed. */
async function countAnswers(page) {
  await page.evaluate(() => {
    window.answers = 0;
    const { json } = Response.prototype;
    Response.prototype.json = async function read() {
      const value = await json.call(this);
      setTimeout(() => (window.answers += 1));
      return value;
    };
  });
}

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

  /** Enter twice sends once, and what is typed until the server answers stays. */
  async sent_once() {
    const page = await open();
    await show(page, `sessions/${await ask('session hello')}`);
    await turnEnded(page, 1);
    const field = '.composer textarea';
    const sendTwice = async (text, posts) => {
      await page.fill(field, text);
      await page.press(field, 'Enter');
      await page.press(field, 'Enter');
      await posts.arrived();
      await page.focus(field);
      await page.keyboard.type(' and later');
      await page.keyboard.press('Enter');
      posts.release();
      await page.waitForFunction(
        () => document.querySelector('.composer textarea').value === 'and later',
      );
      equal(posts.count, 1, `messages for ${text}`);
    };
    await sendTwice('again', await holdPosts(page, '**/api/v1/sessions/*/messages'));
    await turnEnded(page, 2);
    await page.waitForSelector('.item.user:has-text("again")');
    equal(await page.locator('.item.user').count(), 2, 'messages');
    await show(page, 'channels/news');
    await page.waitForSelector('text=No messages yet.');
    await sendTwice('first post', await holdPosts(page, '**/api/v1/channels/*/messages'));
    await page.waitForSelector('.post:has-text("first post")');
    equal(await page.locator('.post').count(), 1, 'posts');
  },

  /** A session that is opened without a connection appears when there is one. */
  async opened_offline() {
    const page = await open();
    const session = await ask('session hello');
    await ask('wait for the answer');
    await page.context().setOffline(true);
    await show(page, `sessions/${session}`);
    await page.waitForSelector('.session-body .error:has-text("the server does not answer")');
    await page.context().setOffline(false);
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
    equal(await page.locator('.session-body .error').count(), 0, 'errors');
    await send(page, 'again');
    await page.waitForSelector('.item.assistant:has-text("You said again")');
  },

  /** "Stop and send" cannot stop the turn of its own message; without a turn, it only sends. */
  async stop_then_send() {
    const page = await open();
    await show(page, `sessions/${await ask('session wait')}`);
    await page.waitForSelector('.call:has-text("running")');
    const posted = [];
    page.on('request', (request) => {
      if (request.method() === 'POST' && request.url().includes('/sessions/'))
        posted.push(request.url().split('/').pop());
    });
    await page.fill('.composer textarea', 'hello');
    await page.click('text=Stop and send');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
    equal(posted, ['stop', 'messages'], 'requests');
    await turnEnded(page, 2);
    // The turn may end while a person presses the button.
    await page.fill('.composer textarea', 'once more');
    await page.evaluate(() => document.querySelector('sv-session').send({ isSteering: true }));
    await page.waitForSelector('.item.assistant:has-text("You said once more")');
  },

  /** What is opened stays, although an answer for something earlier arrives later. */
  async slow_answers() {
    const [page, other] = [await open(), await open()];
    await ask('hidden document');
    await show(page, 'documents');
    const name = 'td a:has-text("[U+202E]dm")';
    const later = await page.getAttribute(name, 'href');
    const slow = await holdAnswer(page, /\/api\/v1\/documents\?.*issues%2F1\.md/);
    await page.click('text=Login accepts empty passwords');
    await slow.arrived();
    await page.evaluate((hash) => {
      location.hash = hash;
    }, later);
    const heading = 'h2:has-text("issues/[U+202E]dm.md")';
    await page.waitForSelector(heading);
    await page.waitForSelector('.preview:has-text("Its name is hidden.")');
    await countAnswers(page);
    slow.release();
    await slow.done();
    await page.waitForFunction(() => window.answers > 0);
    equal(await page.locator(heading).count(), 1, 'the heading of the later document');
    check((await page.inputValue('.editor')).includes('Its name is hidden.'), 'its text');
    // A turn begins and ends between two answers about a session: each item is shown once.
    const session = await ask('session hello');
    await show(other, `sessions/${session}`);
    await turnEnded(other, 1);
    const latest = gate();
    await page.route('**/latest-turn', async (route) => {
      await route.fulfill({ response: await route.fetch() });
      latest.open();
    });
    await page.route(/\/items\?limit=1$/, async (route) => {
      await latest.wait();
      await send(other, 'again');
      await turnEnded(other, 2);
      await route.continue();
    });
    await show(page, `sessions/${session}`);
    await turnEnded(page, 2);
    await page.waitForSelector('.item.assistant:has-text("You said again")');
    equal(await shownItems(page), ['Message', 'Answer', 'Message', 'Answer'], 'items');
  },

  /** A begun message, an edited script and a lesson are not lost by one key or one click. */
  async begun_edits() {
    const page = await open();
    const message = 'dialog textarea';
    await page.click('text=New session');
    await page.fill(message, 'hello');
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    await page.click('text=New session');
    equal(await page.inputValue(message), 'hello', 'the begun message');
    await page.click('text=Create session');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
    await page.click('.side-head >> text=New session');
    equal(await page.inputValue(message), '', 'the message after it was sent');
    await page.keyboard.press('Escape');
    await show(page, `sessions/${await ask('session fail')}`);
    await turnEnded(page, 1);
    await page.click('.item.script >> text=timeline');
    const edit = 'button:text-is("Edit and resume")';
    await page.click(edit);
    await page.fill('textarea[aria-label=Script]', 'return 1;');
    await page.click(edit);
    equal(await page.inputValue('textarea[aria-label=Script]'), 'return 1;', 'the script');
    await page.click('form >> text=Cancel');
    await ask('lesson');
    await show(page, 'memory/lessons');
    await page.click('article.card button:text-is("Delete")');
    await page.click('dialog:has-text("Heron") >> text=Keep it');
    equal((await ask('lessons')).length, 1, 'lessons');
    await page.click('article.card button:text-is("Delete")');
    await page.click('text=Delete the lesson');
    await page.waitForSelector('text=There are no lessons yet.');
    equal(await ask('lessons'), [], 'lessons');
  },

  /** Digits are keys again after a click, and a digit for no request changes nothing. */
  async digits_after_words() {
    const page = await open();
    await ask('session please');
    await show(page, 'approvals');
    await page.waitForSelector('.approval');
    await page.keyboard.type('step 1');
    equal(await page.locator('.approval input:checked').count(), 0, 'selected by words');
    await page.click('.approval h3');
    await page.keyboard.press('1');
    check(await page.isChecked('input[value=once]'), 'a digit selects after a click');
    await page.keyboard.press('Escape');
    await ask('session please');
    const second = page.locator('.approval').nth(1);
    await second.waitFor();
    // It is not clear which request a digit is for.
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press('1');
    equal(await page.locator('.approval input:checked').count(), 0, 'selected in no request');
    await second.focus();
    await page.keyboard.press('4');
    check(await second.locator('input[value=deny]').isChecked(), 'a digit selects');
    check(await ask('doomed exists'), 'no command has run');
  },

  /** A screen reader announces requests; one that was decided does not come back. */
  async announced() {
    const page = await open();
    await show(page, `sessions/${await ask('session please')}`);
    await page.waitForSelector('sv-transcript .asked[aria-live=polite] .approval');
    await page.click('.item.script >> text=timeline');
    await page.waitForSelector('sv-run .asked[aria-live=polite] .approval');
    // The list is read twice at once, and its first answer is older than the decision.
    const slow = await holdAnswer(page, '**/api/v1/approvals');
    await page.evaluate(async () => {
      const { approvals } = await import('/page/approval-store.js');
      window.store = approvals;
      window.first = approvals.reload();
    });
    await slow.arrived();
    await page.evaluate(async () => {
      const [id] = window.store.waiting.keys();
      await window.store.decide(id, 'deny', '');
      window.second = window.store.reload();
    });
    slow.release();
    const left = await page.evaluate(async () => {
      await Promise.all([window.first, window.second]);
      return window.store.waiting.size;
    });
    equal(left, 0, 'requests after the decision');
    await page.waitForSelector('.approval', { state: 'detached' });
  },

  /** A session that another client deletes says so, and takes no more messages. */
  async deleted_session() {
    const [page, other] = [await open(), await open()];
    const session = await ask('session hello');
    for (const browser of [page, other]) {
      await show(browser, `sessions/${session}`);
      await turnEnded(browser, 1);
    }
    await other.click('.session-head >> text=Delete');
    await other.click('text=Delete the session');
    await page.waitForSelector('.notice:has-text("This session was deleted.")');
    equal(await page.locator('.composer, .session-head button').count(), 0, 'what can be done');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
    await page.waitForSelector('.rows li', { state: 'detached' });
  },

  /** An address with a percent sign that begins no code shows its view. */
  async wrong_addresses() {
    const page = await open();
    await show(page, 'memory/search/100%');
    await page.waitForSelector('sv-memory input');
    equal(await page.inputValue('sv-memory input'), '100%', 'the searched words');
  },
};
