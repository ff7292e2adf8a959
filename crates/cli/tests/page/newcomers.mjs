// What people expect who see the page for the first time: what happens, until when, and what stays.

import { ask, check, checkAccessible, equal, open, send, show, turnEnded } from './browser.mjs';

export const newcomerFlows = {
  /** A request says until when it waits; its run shows it, and then who decided. */
  async asked_in_run() {
    const page = await open();
    const session = await ask('session strictly');
    await show(page, 'approvals');
    await page.waitForSelector('.approval');
    const deadline = await page.textContent('.approval .deadline');
    check(/^\d+ s left to decide: at .* the call is denied\.$/.test(deadline), deadline);
    // Both times move without a reload.
    await page.waitForFunction(
      (before) => document.querySelector('.approval .deadline').textContent !== before,
      deadline,
    );
    await page.waitForSelector('.approval time:has-text("s ago")');
    // Digits select also while a link of the menu has the focus.
    await page.focus('#views a');
    await page.keyboard.press('2');
    check(await page.isChecked('input[value=similar_calls]'), 'a digit selects');
    await show(page, `sessions/${session}`);
    await page.click('.item.script >> text=timeline');
    const card = page.locator('sv-run .approval');
    await card.locator('.command:has-text("rm -rf doomed")').waitFor();
    equal(
      await page.evaluate(() => document.activeElement.localName),
      'h2',
      'the focus is at the heading of the run',
    );
    await checkAccessible(page, 'a run that waits');
    await card.locator('.choice', { hasText: 'Deny' }).click();
    await card.locator('input[type=text]').fill('not today');
    await card.locator('button[type=submit]').click();
    await card.waitFor({ state: 'detached' });
    check(await ask('doomed exists'), 'the command has not run');
    // A call that was denied has its command, and the decision; it can fail no more.
    const call = page.locator('sv-run .call');
    await call.locator('.call-args:has-text("rm -rf doomed")').waitFor();
    await call.locator('.decision:has-text("denied on the web page: not today")').waitFor();
    await page.waitForSelector('sv-run .facts .state:has-text("denied")');
    await call.locator('summary').click();
    await call.locator('h4:has-text("Arguments")').waitFor();
    equal(await call.locator('text=What if this call had failed?').count(), 0, 'questions');
    await show(page, `sessions/${session}`);
    await turnEnded(page, 1);
    await page.waitForSelector('.item.result .decision:has-text("denied on the web page")');
    await page.reload();
    await page.waitForSelector('.item.result .decision:has-text("denied on the web page")');
    await page.waitForSelector('.item.result .call-args:has-text("rm -rf doomed")');
    equal(await page.locator('.item.result :is(.bad, .error)').count(), 0, 'failures');
    await show(page, 'health');
    await page.waitForSelector('text=No script has failed in the last 24 hours.');
  },

  /** What a command wrote stays when a person stops it, also after a reload. */
  async stopped_output() {
    const page = await open();
    const session = await ask('session talk');
    await show(page, `sessions/${session}`);
    await page.waitForSelector('.call-body:has-text("step two")');
    await page.click('.session-head button:text-is("Stop")');
    await page.waitForSelector('text=The turn was stopped.');
    const output = 'h4:text-is("Output until it was stopped") + pre';
    const call = page.locator('.item.result .call');
    await call.locator(output).first().waitFor();
    equal(await call.locator(output).first().textContent(), 'step one\nstep two\n', 'the output');
    await page.reload();
    await call.locator('summary').click();
    await call.locator(output).waitFor();
    equal(await call.locator(output).textContent(), 'step one\nstep two\n', 'the output');
    await page.click('.item.script >> text=timeline');
    await page.click('sv-run .call summary');
    await page.waitForSelector(`sv-run .call ${output}`);
  },

  /** A lesson with its kind, text and folder; it is used from then on. */
  async add_lesson() {
    const page = await open();
    await show(page, 'memory/lessons');
    await page.waitForSelector('text=There are no lessons yet.');
    equal(await page.locator('.empty code').textContent(), 'selvedge memory distill', 'code');
    await page.click('text=Add a lesson');
    await page.waitForSelector('form select option >> nth=5', { state: 'attached' });
    await checkAccessible(page, 'the form of a lesson');
    await page.getByLabel('Kind').selectOption('layer');
    await page.getByLabel('Text').fill('Deploy with make ship.\n\nNever on Fridays.');
    await page.click('form button:text-is("Add")');
    await page.waitForSelector('.error:has-text("500 to 5000 tokens")');
    await page.getByLabel('Kind').selectOption('convention');
    await page.getByLabel('Topics').fill('deploy, releases');
    await page.click('form button:text-is("Add")');
    const card = page.locator('article.card', { hasText: 'Deploy with make ship.' });
    await card.locator('.tag', { hasText: 'convention' }).waitFor();
    await card.locator('.tag', { hasText: 'used' }).waitFor();
    const [lesson] = await ask('lessons');
    equal(
      [lesson.title, lesson.kind, lesson.status, lesson.topics, lesson.scope],
      ['Deploy with make ship.', 'convention', 'used', ['deploy', 'releases'], 'project'],
      'the lesson',
    );
    await page.reload();
    await card.waitFor();
  },

  /** An answer that was sent before another one and arrives after it is ignored. */
  async older_answers() {
    const page = await open();
    let release;
    const released = new Promise((resolve) => (release = resolve));
    let held;
    const isHeld = new Promise((resolve) => (held = resolve));
    let isDone;
    const fulfilled = new Promise((resolve) => (isDone = resolve));
    let count = 0;
    const list = /\/api\/v1\/sessions\?/;
    await page.route(list, async (route) => {
      count += 1;
      if (count > 1) return route.continue();
      const response = await route.fetch();
      held();
      await released;
      await route.fulfill({ response });
      return isDone();
    });
    // The list is read before there is a session, and the answer arrives late.
    await isHeld;
    await ask('session hello');
    await page.waitForSelector('.rows .row-title:has-text("<b>Try")');
    await page.evaluate(() => {
      window.answers = [];
      const { json } = Response.prototype;
      Response.prototype.json = async function read() {
        const value = await json.call(this);
        if (value.sessions) setTimeout(() => window.answers.push(value.sessions.length));
        return value;
      };
    });
    release();
    await fulfilled;
    await page.waitForFunction(() => window.answers.includes(0));
    equal(await page.locator('.rows .row-title').count(), 1, 'sessions');
  },

  /** A run has the name of its comment or its first call, its result, and no raw patches. */
  async run_names() {
    const page = await open();
    const session = await ask('session keep notes');
    await show(page, `sessions/${session}`);
    await turnEnded(page, 1);
    await show(page, 'runs');
    await page.click('.row-title:text-is("writeFile notes.txt")');
    await page.waitForSelector('sv-run h2:text-is("writeFile notes.txt")');
    await page.waitForSelector('sv-run section[aria-label=Result]:has-text("noted")');
    await ask('session follow');
    await ask('go');
    await ask('wait for the answer');
    const row = page.locator('.rows a', { hasText: 'Run the tests and the linter' });
    await row.locator('.state:has-text("completed · 1 command failed")').waitFor();
    await show(page, 'health');
    await page.waitForSelector('text=a command failed in 1 completed script');
    await page.waitForSelector('[data-part=runs] td:has-text("completed · 1 command failed")');
    // On a phone, no column is outside of the window.
    await page.setViewportSize({ width: 390, height: 844 });
    const right = await page.$eval(
      '[data-part=runs] td:last-child',
      (cell) => cell.getBoundingClientRect().right,
    );
    check(right <= 390, `the last column ends at ${right}`);
  },

  /** After a reload, turns say what the memory added to their prompts, and how they ended. */
  async turn_notes() {
    const page = await open();
    await ask('lesson');
    const decided = await ask('session We keep the queue in heron, a database.');
    await ask('wait for the answer');
    await show(page, `sessions/${await ask('session Which database is heron, where we keep the queue?')}`);
    await turnEnded(page, 1);
    await send(page, 'break');
    await page.waitForSelector('.notice.error[role=alert]:has-text("a broken request")');
    await send(page, 'wait');
    await page.waitForSelector('.call:has-text("running")');
    await page.click('.session-head button:text-is("Stop")');
    await page.waitForSelector('text=The turn was stopped.');
    await send(page, 'hello');
    await turnEnded(page, 4);
    const line = page.locator('details.recalled', { hasText: '1 earlier turn, 1 matching lesson' });
    const order = async () => {
      await line.waitFor();
      await page.waitForSelector('[data-ended] >> nth=1');
      return page.$$eval('.item.user, .recalled, .notice.error, [data-ended]', (parts) =>
        parts.map(
          ({ className, textContent }) => className.match(/user|recalled/)?.[0] ?? textContent,
        ),
      );
    };
    const before = await order();
    equal(before.slice(0, 3), ['user', 'recalled', 'user'], 'the line is at turn 1');
    const ends = before.filter((part) => part !== 'user' && part !== 'recalled');
    check(/^The turn failed: .*a broken request/.test(ends[0]), ends[0]);
    equal(ends.slice(1), ['The turn was stopped.'], 'ends of turns');
    await page.reload();
    equal(await order(), before, 'the notes after a reload');
    // The line has links to what was recalled, and its texts.
    await line.locator('summary').click();
    await line.locator(`a[href="#/memory/${decided}/1"]`).waitFor();
    await line.locator('pre', { hasText: 'in heron, a database' }).waitFor();
    await line.locator('li:has-text("Heron") code:has-text("make heron")').waitFor();
    await checkAccessible(page, 'what was recalled');
  },

  /** What the memory added to a prompt can be opened, and stays at its turn. */
  async recalled() {
    const page = await open();
    await show(page, `sessions/${await ask('session hello')}`);
    await turnEnded(page, 1);
    await page.evaluate(() => {
      const { model } = document.querySelector('sv-session');
      const details = ['turn ses_a/T-3: the <b>login</b> form'];
      model.take({ type: 'memory.recalled', turns: 1, lessons: 0, layers: 0, details });
    });
    const line = page.locator('details.recalled', { hasText: 'Memory added to the prompt' });
    await line.locator('summary').click();
    await line.locator('li', { hasText: 'the <b>login</b> form' }).waitFor();
    await page.fill('.composer textarea', 'again');
    await page.press('.composer textarea', 'Enter');
    await turnEnded(page, 2);
    equal(await line.count(), 1, 'lines about the memory');
    const order = await page.$$eval('.item.user, details.recalled', (parts) =>
      parts.map(({ localName }) => localName),
    );
    equal(order, ['article', 'details', 'article'], 'the line follows its message');
    // A recall that failed is visible, too.
    await page.evaluate(() => {
      const details = ['vectors: deadline exceeded'];
      const event = { type: 'memory.recalled', turns: 0, lessons: 0, layers: 0, details };
      document.querySelector('sv-session').model.take(event);
    });
    await page.waitForSelector(
      'text=Memory added nothing to the prompt · vectors: deadline exceeded',
    );
  },
};
