// What people do with the page, each from the start to the end.

import {
  ask,
  check,
  equal,
  hide,
  open,
  run,
  send,
  show,
  shownItems,
  turnEnded,
  until,
} from './browser.mjs';
import { changingFlows } from './changing.mjs';
import { decidingFlows } from './deciding.mjs';
import { hostileFlows } from './hostile.mjs';
import { newcomerFlows } from './newcomers.mjs';
import { peopleFlows } from './people.mjs';
import { screenFlows } from './screens.mjs';
import { stateFlows } from './states.mjs';
import { viewFlows } from './views.mjs';

await run({
  ...viewFlows,
  ...peopleFlows,
  ...newcomerFlows,
  ...decidingFlows,
  ...hostileFlows,
  ...screenFlows,
  ...stateFlows,
  ...changingFlows,

  /** Log in, create a session with the dialog, and follow its script. */
  async create_and_follow() {
    const page = await open({ login: false });
    await page.waitForSelector('text=selvedge serve login');
    await page.goto(await ask('login'));
    await page.click('text=New session');
    await page.fill('dialog textarea', 'follow');
    await page.fill('dialog input[type=text]', 'Follow a script');
    await page.click('text=Create session');
    // The script runs: its calls appear with arguments and output before they end.
    await page.waitForSelector('.call .call-body:has-text("running 3 tests")');
    check(await page.isVisible('button:has-text("Stop")'), 'a running turn can be stopped');
    await send(page, 'another message');
    await page.waitForSelector('.queued:has-text("another message")');
    await page.click('.queued >> text=Remove');
    await page.waitForSelector('.queued', { state: 'detached' });
    await ask('go');
    await turnEnded(page, 1);
    equal(
      await shownItems(page),
      ['Message', 'Reasoning', 'Answer', 'Script', 'Result of a script', 'Answer'],
      'items',
    );
    await page.waitForSelector('.item.script .keyword');
    // The script has completed, and a command in it failed.
    const end = '.item.result .state.waits:has-text("completed · 1 command failed")';
    await page.waitForSelector(end);
    const failed = page.locator('.item.result .call').nth(1);
    await failed.locator('text=exit 3').waitFor();
    const took = await failed.locator('.call-end .dim').textContent();
    check(/^(\d+ ms|\d+\.\d s)$/.test(took), `the duration of a call: ${took}`);
    await failed.locator('summary').click();
    await failed.locator('text=unused variable').first().waitFor();
    await page.waitForSelector('.item.assistant table td');
    await page.waitForSelector('.item.assistant strong:has-text("done")');
    // Two requests of a hundred input tokens.
    const usage = await page.textContent('.usage');
    check(/200 tokens in.* cost 0\.0200/.test(usage), usage);
    // After a reload the calls are the same, also if the run cannot be read.
    await page.route('**/api/v1/runs/*', (route) => route.abort());
    await page.reload();
    await page.waitForSelector('.item.result .call:has-text("exit 3")');
    await page.waitForSelector(end);
    equal(await page.locator('.item.result .call .state.good').count(), 1, 'commands without failure');
    await page.unroute('**/api/v1/runs/*');
    await page.reload();
    await page.waitForSelector('.item.result .call:has-text("exit 3")');
    await page.waitForSelector('.item.result .call-args:has-text("lint.sh")');
    await page.waitForSelector(end);
    await page.click('.session-head >> text=Fork');
    await page.click('dialog >> text=Cancel');
    equal(await page.locator('sv-sessions .rows li').count(), 1, 'sessions without a fork');
    await page.click('.session-head >> text=Fork');
    await page.click('text=Create the copy');
    await page.waitForSelector('sv-sessions .rows li:nth-child(2)');
    const before = await page.locator('sv-sessions .rows li').count();
    await page.click('.session-head >> text=Delete');
    await page.click('text=Keep it');
    await page.click('.session-head >> text=Delete');
    await page.click('text=Delete the session');
    await page.waitForFunction(
      (rows) => document.querySelectorAll('sv-sessions .rows li').length === rows - 1,
      before,
    );
    await page.fill('.side input[type=search]', 'no such title');
    await page.waitForSelector('text=No title contains this text.');
  },

  /** A turn that is stopped, and one that a message replaces. */
  async stop_and_steer() {
    const page = await open();
    await show(page, `sessions/${await ask('session wait')}`);
    await page.waitForSelector('.call:has-text("running")');
    await page.click('button:has-text("Stop")');
    // To stop a turn is no failure.
    await page.waitForSelector('text=The turn was stopped.');
    await page.waitForSelector('.item.result:has-text("The script was stopped before its end.")');
    equal(await page.locator('.session-body :is(.bad, .error)').count(), 0, 'failures');
    await send(page, 'wait');
    await page.waitForSelector('.item.user >> nth=1');
    await page.waitForSelector('.call:has-text("running")');
    // A queued message would be answered at once: the page asks before it stops the turn.
    await send(page, 'first');
    await page.waitForSelector('.queued:has-text("first")');
    await page.click('.session-head button:text-is("Stop")');
    await page.waitForSelector('dialog:has-text("answers the queued message at once") >> text=first');
    await page.click('text=Let it run');
    await page.waitForSelector('.call:has-text("running")');
    await page.click('.session-head button:text-is("Stop")');
    await page.click('text=Stop, and answer the queued message');
    await page.waitForSelector('.item.assistant:has-text("You said first")');
    await send(page, 'wait');
    await page.waitForSelector('.item.user >> nth=3');
    await page.waitForSelector('.call:has-text("running")');
    await page.fill('.composer textarea', 'hello');
    await page.click('text=Stop and send');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
  },

  /** A message that replaces a running turn: its command ends, and the model knows the turn. */
  async steer() {
    const page = await open();
    await show(page, `sessions/${await ask('session tick')}`);
    await page.waitForSelector('.call:has-text("running")');
    await until(async () => (await ask('ticks')) > 0, 'the command writes');
    check((await ask('tick commands')) > 0, 'the command runs');
    // With the keyboard alone.
    await page.focus('.composer textarea');
    await page.keyboard.type('change course');
    await page.keyboard.press('Tab');
    equal(
      await page.evaluate(() => document.activeElement.textContent),
      'Stop and send',
      'the focused button',
    );
    await page.keyboard.press('Enter');
    await page.waitForSelector('.item.assistant:has-text("The course was changed: true")');
    await turnEnded(page, 2);
    equal(await ask('tick commands'), 0, 'commands of the stopped turn');
    equal(
      await shownItems(page),
      ['Message', 'Answer', 'Script', 'Result of a script', 'Message', 'Answer'],
      'items',
    );
    await page.waitForSelector('.item.result:has-text("The script was stopped before its end.")');
  },

  /** Text of languages that are written from right to left. */
  async right_to_left() {
    const page = await open();
    const session = await ask('session سؤال عن الاختبارات: rtl');
    await show(page, `sessions/${session}`);
    await turnEnded(page, 1);
    await page.waitForSelector('.item.assistant .keyword');
    const direction = (selector) =>
      page.$eval(selector, (element) => getComputedStyle(element).direction);
    const answer = '.item.assistant';
    equal(await direction(`${answer} p:has-text("مرحبا")`), 'rtl', 'a paragraph');
    equal(await direction(`${answer} li:has-text("שלום")`), 'rtl', 'an item');
    equal(await direction(`${answer} li:has-text("English")`), 'ltr', 'an English item');
    equal(await direction(`${answer} td:has-text("قيمة")`), 'rtl', 'a cell');
    equal(await direction(`${answer} blockquote p`), 'rtl', 'a quotation');
    equal(await direction(`${answer} pre.code`), 'ltr', 'code');
    // The marks of a list and of a quotation are on the side where its text begins.
    const style = (selector, property) =>
      page.$eval(selector, (element, name) => getComputedStyle(element)[name], property);
    equal(await style(`${answer} ul`, 'paddingRight'), '24px', 'the room for a bullet');
    equal(await style(`${answer} blockquote`, 'borderRightWidth'), '3px', 'the line, on the right');
    equal(await style(`${answer} blockquote`, 'borderLeftWidth'), '0px', 'no line, on the left');
    equal(await direction('.session-title'), 'rtl', 'the title');
    equal(await direction('.rows .row-title:has-text("سؤال")'), 'rtl', 'the title in the list');
    await page.fill('.composer textarea', 'أرسل النتيجة');
    equal(await direction('.composer textarea'), 'rtl', 'the message');
    const pictures = process.env.SELVEDGE_PICTURES;
    if (pictures) await page.screenshot({ path: `${pictures}/right-to-left.png` });
    await page.setViewportSize({ width: 360, height: 740 });
    const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    check(!isWide, 'the page is not wider than the window');
    if (pictures) await page.screenshot({ path: `${pictures}/right-to-left-small.png` });
  },

  /** Approve in one browser, deny in the other; a decided request disappears in both. */
  async approve_and_deny() {
    const [first, second] = [await open(), await open()];
    const session = await ask('session please');
    await show(first, 'approvals');
    await show(second, `sessions/${session}`);
    await second.waitForSelector('.approval .command:has-text("rm -rf doomed")');
    await first.waitForSelector('.approval .snippet:has-text("doomed")');
    await first.waitForSelector('nav .badge:has-text("1")');
    // Nothing is selected, and Enter alone decides nothing.
    equal(await first.locator('.approval input:checked').count(), 0, 'selected decisions');
    await first.focus('.approval');
    await first.keyboard.press('Enter');
    await first.keyboard.press('2');
    check(await first.isChecked('input[value=similar_calls]'), 'a digit selects');
    await first.keyboard.press('Escape');
    equal(
      await first.locator('.approval input:checked').count(),
      0,
      'selected decisions after Escape',
    );
    check(
      await first.isDisabled('.approval button[type=submit]'),
      'without a selection there is no decision',
    );
    check(await ask('doomed exists'), 'the command has not run');
    await first.keyboard.press('1');
    await first.keyboard.press('Enter');
    await first.waitForSelector('.approval', { state: 'detached' });
    await second.waitForSelector('.approval', { state: 'detached' });
    await second.waitForSelector('.item.assistant:has-text("allowed")');
    check(!(await ask('doomed exists')), 'the command has run');
    await send(second, 'please');
    await first.waitForSelector('.approval');
    await second.click('.approval >> text=Deny');
    await second.fill('.approval input[type=text]', 'keep it');
    await second.click('.approval button:has-text("Deny")');
    await first.waitForSelector('.approval', { state: 'detached' });
    await first.waitForSelector('text=No call needs approval.');
    await second.waitForSelector('.item.assistant:has-text("denied")');
    await second.waitForSelector('.item.result:has-text("keep it")');
  },

  /** Reload while an answer arrives, and while a script runs. */
  async reload_in_the_middle() {
    const page = await open();
    await show(page, `sessions/${await ask('session half')}`);
    await page.waitForSelector('.item.assistant:has-text("The first half")');
    await page.reload();
    await page.waitForSelector('.item.assistant:has-text("The first half")');
    equal(await page.locator('.item.assistant').count(), 1, 'answers after a reload');
    // A hidden page closes its streams. What was written meanwhile follows without a gap.
    await show(page, `sessions/${await ask('session count')}`);
    const output = '.item.script .call-body pre';
    await page.waitForSelector(`${output}:has-text("line 15")`);
    await hide(page, true);
    const again = page.waitForResponse(/\/sessions\/[^/]+\/events/);
    await hide(page, false);
    await again;
    const written = async () => (await page.textContent(output)).trimEnd().split('\n');
    const most = (await written()).length + 20;
    await until(async () => (await written()).length > most, 'the output continues');
    const lines = (await written()).slice(0, most);
    equal(lines, lines.map((_, at) => `line ${at + 1}`), 'the output');
    await ask('go');
    await turnEnded(page, 1);
    await show(page, `sessions/${await ask('session follow')}`);
    await page.waitForSelector('.call .call-body:has-text("running 3 tests")');
    await page.reload();
    await page.waitForSelector('.call .call-body:has-text("running 3 tests")');
    equal(await page.locator('.item.script').count(), 1, 'scripts after a reload');
    equal(await page.locator('.call').count(), 2, 'calls after a reload');
    // The page is shown again after the turn has ended.
    await hide(page, true);
    await ask('go');
    await ask('wait for the answer');
    await hide(page, false);
    await turnEnded(page, 1);
    equal(
      await shownItems(page),
      ['Message', 'Reasoning', 'Answer', 'Script', 'Result of a script', 'Answer'],
      'items',
    );
  },

  /** Kill the server in the middle of a turn; the next one continues it, and the page follows. */
  async kill_and_restart() {
    const page = await open();
    await show(page, `sessions/${await ask('session interrupted')}`);
    await page.waitForSelector('.item.assistant:has-text("The first half")');
    await ask('kill');
    await page.waitForSelector('#connection:has-text("No connection")');
    await ask('restart');
    await turnEnded(page, 1);
    await page.waitForSelector('.item.assistant strong:has-text("done")');
    await page.waitForFunction(() => document.getElementById('connection').textContent === '');
    const shown = await shownItems(page);
    equal(shown, ['Message', 'Answer', 'Script', 'Result of a script', 'Answer'], 'items');
    await page.reload();
    await page.waitForSelector('.item.assistant strong:has-text("done")');
    equal(await shownItems(page), shown, 'items after a reload');
    await send(page, 'hello');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
  },

  /** Two browsers show the same session. */
  async two_browsers() {
    const [first, second] = [await open(), await open({ viewport: { width: 360, height: 740 } })];
    const session = await ask('session hello');
    for (const page of [first, second]) await show(page, `sessions/${session}`);
    for (const page of [first, second])
      await page.waitForSelector('.item.assistant:has-text("You said hello")');
    await send(second, 'and again');
    await first.waitForSelector('.item.user:has-text("and again")');
    for (const page of [first, second]) await turnEnded(page, 2);
    await first.waitForFunction(() => document.querySelectorAll('article.item').length === 4);
    equal(await shownItems(first), await shownItems(second), 'items of both browsers');
  },

  /** A transcript of 10,000 items has few elements, and scrolls without long pauses. */
  async long_transcript() {
    const page = await open();
    const { session, total } = await ask('huge session');
    check(total >= 10_000, `${total} items`);
    await show(page, `sessions/${session}`);
    await page.waitForSelector(`article[data-number="${total}"]`);
    const most = { items: 0, nodes: 0 };
    const measure = async (place) => {
      const [items, nodes] = await page.evaluate(() =>
        ['article.item', '*'].map((selector) => document.querySelectorAll(selector).length),
      );
      Object.assign(most, {
        items: Math.max(most.items, items),
        nodes: Math.max(most.nodes, nodes),
      });
      check(items < 400 && nodes < 8000, `${place}: ${items} items have ${nodes} elements`);
    };
    // Items without a gap are in the middle of the window, where there may be a margin of one.
    const settled = () =>
      page.waitForFunction(() => {
        const items = [...document.querySelectorAll('article.item')];
        const numbers = items.map(({ dataset }) => Number(dataset.number));
        const box = document.querySelector('sv-transcript').getBoundingClientRect();
        const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
        const isItem = (offset) =>
          document.elementFromPoint(x, y + offset)?.closest('article.item');
        const hasItem = [-80, -40, 0, 40, 80].some(isItem);
        return hasItem && numbers.every((number, at) => number === numbers[0] + at);
      });
    await measure('the end');
    // The longest time between two frames while a person scrolls with the wheel.
    await page.evaluate(() => {
      let last = performance.now();
      window.longestFrame = 0;
      const frame = (now) => {
        window.longestFrame = Math.max(window.longestFrame, now - last);
        last = now;
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    });
    await page.hover('sv-transcript');
    for (let step = 1; step <= 60; step += 1) {
      await page.mouse.wheel(0, -1500);
      await page.waitForTimeout(30);
      if (step % 15 === 0) {
        await settled();
        await shownItems(page);
        await measure(`after ${step} steps`);
      }
    }
    const longest = await page.evaluate(() => window.longestFrame);
    // At any other place, items appear in the middle of the window.
    for (const part of [0.75, 0.5, 0.25, 0]) {
      await page.evaluate((share) => {
        const transcript = document.querySelector('sv-transcript');
        transcript.scrollTop = share * transcript.scrollHeight;
      }, part);
      await settled();
      await measure(`${100 * part} %`);
    }
    await page.waitForSelector('article[data-number="1"]');
    console.error(
      `${total} items: at most ${most.items} with ${most.nodes} elements; longest frame ${Math.round(longest)} ms`,
    );
    check(longest < 500, `a frame took ${longest} ms`);
    await page.click('text=Newest');
    await page.waitForSelector(`article[data-number="${total}"]`);
  },

  /** The other views, with the keyboard where it matters. */
  async other_views() {
    const page = await open();
    const session = await ask('session fail');
    await show(page, `sessions/${session}`);
    await turnEnded(page, 1);
    await page.click('.item.script >> text=timeline');
    await page.waitForSelector('sv-run >> text=SandboxViolationError');
    await page.locator('.lanes .bar').first().focus();
    await page.keyboard.press('Enter');
    await page.waitForSelector('.call[open] >> text=Arguments');
    await page.click('text=Replay');
    await page.waitForSelector('text=The replay matches the recording.');
    await page.click('text=What if this call had failed?');
    await page.waitForSelector('text=If tool_1 had failed');
    await show(page, 'channels/engineering');
    await page.fill('.composer textarea', 'A **post**');
    await page.click('.composer button');
    await page.waitForSelector('.post strong:has-text("post")');
    await page.waitForSelector('.rows >> text=engineering');
    await show(page, 'documents');
    await page.waitForSelector('td:has-text("open")');
    await page.click('text=Login accepts empty passwords');
    await page.waitForSelector('.preview code:has-text("check")');
    const editor = page.locator('.editor');
    await editor.fill((await editor.inputValue()).replace('open', 'done'));
    await page.click('text=Save');
    await page.waitForSelector('text=Saved.');
    // What was not edited is as it was, also comments and spaces of the front matter.
    equal(
      await ask('document'),
      '---\nkind: issue\nstatus: done\ntitle: Login accepts empty passwords\n' +
        "# Who looks at it\nowner:   'ann'   # not bob\nlabels: [b,   a]\n---\n" +
        '`check` returns true.\n',
      'the document',
    );
    await show(page, 'memory');
    await page.fill('sv-memory input', 'written');
    await page.keyboard.press('Enter');
    await page.waitForSelector(`sv-memory a[href="#/sessions/${session}"]`);
    await page.click('.item >> text=turn 1');
    await page.waitForSelector('.bands .band');
    await page.waitForSelector('.level-columns section[aria-label="one line"]');
    // In full, the turn has its messages and its script, and no JSON of the journal.
    const full = page.locator('.level-columns section[aria-label="in full"]');
    await full.locator('.kind:text-is("Message") >> xpath=../following-sibling::pre[1]').waitFor();
    await full.locator('.keyword:text-is("await")').first().waitFor();
    await full.locator('p:text-is("writeFile a.txt")').waitFor();
    check(!(await full.textContent()).includes('"type"'), 'JSON of items');
    await page.click('text=Lessons');
    await page.waitForSelector('text=There are no lessons yet.');
    await show(page, `memory/${(await ask('long session')).session}`);
    await page.waitForSelector('.band.smoothed');
    const bars = await page.$$eval('.band', (bands) =>
      bands.map((band) => band.getBoundingClientRect().right),
    );
    check(Math.max(...bars) <= 1280 && bars.length < 150, `${bars.length} bands fit the window`);
    await show(page, 'health');
    await page.waitForSelector('tr:has-text("sandbox") >> text=passed');
    await page.waitForSelector('tr:has-text("Turns that run")');
  },

  /** Writes the pictures of the documentation. */
  async screenshots() {
    const folder = process.env.SELVEDGE_SCREENSHOTS;
    const session = await ask('session Check the project: follow');
    const page = await open({ viewport: { width: 1200, height: 760 } });
    const picture = async (name) => {
      // A text is plain until the server has rendered it.
      await page.waitForFunction(() => !document.querySelector('.rich > :is(.text, .long)'));
      await page.screenshot({ path: `${folder}/page-${name}.png` });
    };
    // A busy server leaves the end of a script without colours.
    const coloured = async () => {
      await page.waitForSelector('pre.code');
      for (let attempt = 0; attempt < 10; attempt += 1) {
        const last = page.locator('pre.code .keyword', { hasText: 'return' });
        if (
          await last.waitFor({ timeout: 5_000 }).then(
            () => true,
            () => false,
          )
        )
          return;
        await page.reload();
      }
      throw new Error('the script has no colours');
    };
    await show(page, `sessions/${session}`);
    await coloured();
    await page.waitForSelector('.call .call-body:has-text("running 3 tests")');
    await picture('session');
    await ask('go');
    await turnEnded(page, 1);
    await page.click('.item.script >> text=timeline');
    await page.waitForSelector('sv-run');
    await coloured();
    await picture('run');
    await ask('session Delete the old build: please');
    await show(page, 'approvals');
    await page.waitForSelector('.approval');
    await picture('approvals');
    await show(page, `memory/${await ask('picture session')}/640`);
    await page.waitForSelector('.bands .band');
    await page.waitForSelector('.level-columns section[aria-label="one line"]');
    await picture('memory');
  },
});
