// What people do in the views besides the transcript: runs, health and memory.

import { ask, check, equal, open, send, show, turnEnded, until } from './browser.mjs';

export const viewFlows = {
  /** Edit the script of a failed run with the keyboard and with completion, and resume the run. */
  async edit_and_resume() {
    const page = await open();
    await show(page, `sessions/${await ask('session fail')}`);
    await turnEnded(page, 1);
    await page.click('.item.script >> text=timeline');
    await page.locator('button', { hasText: 'Edit and resume' }).focus();
    await page.keyboard.press('Enter');
    await page.waitForSelector('textarea[aria-label=Script]:focus');
    const keys = async (...names) => {
      for (const name of names) await page.keyboard.press(name);
    };
    // The call that has ended stays; the one that failed is written anew.
    await keys('Control+End', 'Shift+Home', 'Delete');
    await page.keyboard.type('await tools.wr');
    await page.waitForSelector('[role=option]:has-text("tools.writeFile")');
    await keys('ArrowDown');
    await page.waitForSelector('.about:has-text("content")');
    await keys('Enter');
    await page.keyboard.type('{ ');
    await page.waitForSelector('[role=option]:has-text("path (required)")');
    await page.keyboard.type('pa');
    await keys('ArrowDown', 'Enter');
    await page.keyboard.type("'b.txt', ");
    await page.waitForSelector('[role=option]:has-text("content")');
    equal(await page.locator('[role=option]', { hasText: 'path' }).count(), 0, 'used fields');
    await keys('Escape');
    await page.waitForSelector('[role=listbox]', { state: 'hidden' });
    await keys('Control+Space', 'ArrowDown', 'Enter');
    await page.keyboard.type("'b' });");
    await keys('Enter');
    await page.keyboard.type("return 'resumed';");
    equal(
      await page.inputValue('textarea[aria-label=Script]'),
      "await tools.writeFile({ path: 'a.txt', content: 'a' });\n" +
        "await tools.writeFile({ path: 'b.txt', content: 'b' });\nreturn 'resumed';",
      'the edited script',
    );
    await keys('Tab', 'Enter');
    await page.waitForSelector('sv-run .state:has-text("completed")');
    equal(await page.locator('.call .tag', { hasText: 'reused' }).count(), 1, 'reused calls');
    await page.waitForSelector('text=Resumes scr_');
    equal(await ask('file b.txt'), 'b', 'the file');
    // A script that runs can be stopped.
    await page.click('button:has-text("Edit and resume")');
    const endless = "await tools.exec({ command: ['sleep', '600'] });";
    await page.fill('textarea[aria-label=Script]', endless);
    await page.click('form[aria-label="Edit and resume"] button[type=submit]');
    await page.click('sv-run button:has-text("Stop")');
    await page.waitForSelector('sv-run .state:has-text("stopped")');
  },

  /** The timeline shows how long calls waited for approval and for a free slot. */
  async waiting_times() {
    const page = await open();
    await show(page, `sessions/${await ask('session please')}`);
    await page.waitForSelector('.approval');
    // The call waits for two seconds, which is longer than it runs.
    const left = () => page.$eval('.approval .deadline', (part) => parseInt(part.textContent, 10));
    const first = await left();
    await page.waitForFunction(
      (most) => parseInt(document.querySelector('.approval .deadline').textContent, 10) <= most,
      first - 2,
    );
    await page.focus('.approval');
    await page.keyboard.press('1');
    await page.keyboard.press('Enter');
    await turnEnded(page, 1);
    await page.click('.item.script >> text=timeline');
    await page.waitForSelector('.call .tag:has-text("for approval")');
    const [wait, bar] = await page.$$eval('.lanes > *', (parts) =>
      parts.map((part) => [part.className, part.getBoundingClientRect()]),
    );
    equal([wait[0], bar[0]], ['wait for-approval', 'bar'], 'parts of the lane');
    check(wait[1].width > bar[1].width, 'the wait is longer than the call');
    check(wait[1].top === bar[1].top, 'the wait is in the lane of the call');
    await page.waitForSelector('.legend:has-text("waits for approval")');
    const mark = await page.$eval('.legend .swatch', (swatch) => swatch.getBoundingClientRect());
    equal([mark.width, mark.height], [12, 12], 'the size of a mark of the legend');
    await show(page, `sessions/${await ask('session queue')}`);
    await turnEnded(page, 1);
    await page.click('.item.script >> text=timeline');
    await page.waitForSelector('.call .tag:has-text("for a free slot")');
    check((await page.locator('.wait.for-queue').count()) > 5, 'calls that waited for a slot');
  },

  /** Health shows MCP servers, what waits in the queue, and which turns failed. */
  async health() {
    const page = await open();
    await ask('session use a server');
    await ask('wait for the answer');
    const failed = await ask('session break');
    await ask('wait for the answer');
    const waiting = await ask('session wait');
    await show(page, `sessions/${waiting}`);
    await page.waitForSelector('.call:has-text("running")');
    await send(page, 'and <b>then</b>');
    await page.waitForSelector('.queued');
    await show(page, 'health');
    const part = (name) => page.locator(`[data-part=${name}]`);
    const server = part('servers').locator('tr', { hasText: 'broken' });
    await server.locator('.state', { hasText: 'failed' }).waitFor();
    await server.locator('p.bad', { hasText: 'was not found' }).waitFor();
    await part('servers').locator('tr', { hasText: 'unused' }).locator('text=disabled').waitFor();
    await part('queue').locator('text=1 turn runs, 1 message waits').waitFor();
    await part('queue').locator('tr', { hasText: 'and <b>then</b>' }).waitFor();
    const error = part('errors').locator('tr', { hasText: 'a broken request' });
    equal(
      await error.locator('a').getAttribute('href'),
      `#/sessions/${failed}`,
      'the session of an error',
    );
    await page.waitForSelector('tr:has-text("sandbox") >> text=passed');
    await page.waitForSelector('tr:has-text("Turns that run")');
    const summary = part('summary');
    await summary.locator('text=the MCP server broken failed').waitFor();
    await summary.locator('text=1 turn ended with an error').waitFor();
    await part('runs').locator('text=No script has failed in the last 24 hours.').waitFor();
    const model = part('checks').locator('tr', { hasText: 'model' });
    await model.locator('text=/mock of mock at http:.*can be reached/').waitFor();
    const memory = part('checks').locator('tr', { hasText: 'project memory' });
    await memory.locator('text=/turns? stored, found by words.*0 proposals for review/').waitFor();
    // The queue is read again. A turn that a person stops is no error.
    await ask('stop');
    await part('queue').locator('text=0 turns run, 0 messages wait').waitFor();
    equal(await part('errors').locator('tbody tr').count(), 1, 'errors after a turn was stopped');
    // What is shown again after an error is the same as before.
    const status = '**/api/v1/status*';
    await page.route(status, (route) => route.abort());
    await part('servers').locator('.error').waitFor();
    await page.unroute(status);
    await server.locator('.state', { hasText: 'failed' }).waitFor();
    equal(await part('servers').locator('.error').count(), 0, 'errors that are over');
  },

  /** A document without its content is not edited, and one that was changed is not replaced. */
  async documents() {
    const mixed =
      '---\r\nkind: issue\nstatus: open\r\ntitle: Mixed\n---\nOne\r\ntwo\nthree\r\n';
    const page = await open();
    await ask('mixed document');
    await show(page, 'documents');
    const read = '**/api/v1/documents?*';
    await page.route(read, (route) => route.abort());
    await page.click('text=Mixed');
    await page.waitForSelector('.error');
    const editor = page.locator('.editor');
    equal(await editor.count(), 0, 'editors without content');
    await page.unroute(read);
    await page.click('text=Try again');
    const replace = async (before, now) => {
      await editor.fill((await editor.inputValue()).replace(before, now));
      await page.click('button:has-text("Save")');
    };
    await replace('two', 'changed\nand more');
    await page.waitForSelector('text=Saved.');
    const saved = mixed.replace('two\n', 'changed\r\nand more\r\n');
    equal(await ask('document'), saved, 'the document');
    // The status has a field, which changes only its line and suggests known values.
    const status = page.getByLabel('Status');
    equal(await status.inputValue(), 'open', 'the status');
    await page.waitForFunction(() => document.querySelector('#document-status option')?.value === 'open');
    await status.fill('done');
    await page.click('button:has-text("Save")');
    await page.waitForSelector('text=Saved.');
    await until(async () => (await ask('document')) !== saved, 'the document is saved');
    equal(await ask('document'), saved.replace('status: open', 'status: done'), 'the status');
    await editor.fill((await editor.inputValue()).replace('status: done', 'status: later'));
    await page.waitForFunction(
      () => document.querySelector('[list=document-status]').value === 'later',
    );
    // An agent changes the document meanwhile.
    await ask('mixed document');
    await replace('three', 'four');
    await page.waitForSelector('.error >> text=the document was changed meanwhile');
    equal(await ask('document'), mixed, 'the document of the agent');
  },

  /** Review, edit and accept what was learned, and see the topics over time. */
  async review_memory() {
    const page = await open();
    await ask('memory session');
    await show(page, 'memory/lessons');
    // What waits for a decision is shown first.
    await page.waitForSelector('button[aria-pressed=true]:has-text("To review (1)")');
    const card = page.locator('article.card');
    await card.locator('.tag', { hasText: 'reference text' }).waitFor();
    // The layer is changed with the keyboard alone; Escape discards the change.
    await card.locator('button', { hasText: 'Edit' }).focus();
    await page.keyboard.press('Enter');
    await page.keyboard.type('Discarded');
    await page.keyboard.press('Escape');
    equal(await page.evaluate(() => document.activeElement.textContent), 'Edit', 'focus');
    await page.keyboard.press('Enter');
    await page.keyboard.press('Control+A');
    await page.keyboard.type('Steps of the migration');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Control+A');
    await page.keyboard.press('Delete');
    await page.keyboard.type(' ');
    await page.click('text=Save');
    await card.locator('text=a layer has 500 to 5000 tokens, and this text has 0').waitFor();
    await card.locator('textarea').fill('Run the **steps** in order.');
    await page.click('text=Save');
    await card.locator('text=and this text has').waitFor();
    const steps = 'Run the **steps** in order. '.repeat(120).trim();
    await card.locator('textarea').fill(steps);
    await page.click('text=Save');
    await card.locator('h3', { hasText: 'Steps of the migration' }).waitFor();
    await card.locator('strong', { hasText: 'steps' }).first().waitFor();
    await card.locator('button', { hasText: 'Accept' }).click();
    await page.waitForSelector('button:has-text("To review (0)")');
    await page.click('button:has-text("All (")');
    const other = page.locator('article.card', { hasText: 'German' }).first();
    const marks = other.locator('.facts');
    await other.locator('button', { hasText: 'Decline' }).click();
    await marks.locator('.tag', { hasText: 'declined' }).waitFor();
    const lessons = await ask('lessons');
    const layer = lessons.find(({ kind }) => kind === 'layer');
    equal(
      [layer.title, layer.content, layer.status],
      ['Steps of the migration', steps, 'used'],
      'the layer',
    );
    // A lesson that is used in all projects is decided about here, too.
    check(await ask('all projects'), 'the layer is used in all projects');
    await page.reload();
    await page.click('button:has-text("All (")');
    const shared = page.locator('article.card', { hasText: 'Steps of the migration' });
    await shared.locator('.tag', { hasText: 'all projects' }).waitFor();
    await shared.locator('button', { hasText: 'Decline' }).click();
    await shared.locator('.tag', { hasText: 'declined' }).waitFor();
    await page.click('text=Topics');
    const row = page.locator('tr', { hasText: 'migration' });
    equal(await row.locator('.number').textContent(), '12', 'turns that mention a topic');
    equal(await row.locator('.chart-bar').count(), 1, 'weeks');
  },
};
