// What a person does who has only the page: each flow is a task in which people got lost before.

import {
  ask,
  base,
  check,
  checkAccessible,
  equal,
  open,
  send,
  show,
  turnEnded,
  until,
} from './browser.mjs';

/** The text of what has the focus. */
const focused = (page) =>
  page.evaluate(() => {
    const element = document.activeElement;
    return element.getAttribute('aria-label') ?? element.textContent;
  });

/** Whether an element is completely in the window, and nothing covers it. Runs in the page. */
function isUncovered(element) {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  const isInside = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
  const corners = [
    [left + 3, top + 3],
    [right - 3, bottom - 3],
  ];
  const isFree = corners.every(([x, y]) => {
    const found = document.elementFromPoint(x, y);
    return found && (element.contains(found) || found.contains(element));
  });
  return isInside && isFree;
}

/** Waits until an element is completely in the window, and nothing covers it. */
async function waitUntilVisible(locator) {
  const text = await locator.textContent();
  const { width, height } = locator.page().viewportSize();
  await locator
    .page()
    .waitForFunction(isUncovered, await locator.elementHandle())
    .catch((error) => {
      throw new Error(`${text} is not visible at ${width} × ${height}: ${error.message}`);
    });
}

export const peopleFlows = {
  /** A document from fields; the form says where documents can be. */
  async create_document() {
    const page = await open();
    await show(page, 'documents');
    await page.click('text=New document');
    await page.getByLabel('Title').waitFor();
    const file = page.getByLabel('File', { exact: true });
    await page.waitForSelector('form :text("Documents of this folder are issues/**/*.md.")');
    await page.getByLabel('Title').fill('Shop ideas: 2');
    equal(await file.inputValue(), 'issues/shop-ideas-2.md', 'the file');
    await checkAccessible(page, 'the form of a new document');
    await page.getByLabel('Title').fill('Shop ideas');
    await page.getByLabel('Status').fill('yes');
    await page.getByLabel('Text').fill('Sell **more**.');
    // A refused place says which ones are allowed.
    await file.fill('ideas.md');
    await page.click('text=Create document');
    await page.waitForSelector('.notice.error:has-text("issues/**/*.md")');
    // A document that exists is not replaced.
    await file.fill('issues/1.md');
    await page.click('text=Create document');
    await page.waitForSelector('.notice.error:has-text("there is a document issues/1.md already")');
    await file.fill('');
    await page.getByLabel('Title').fill('Shop ideas');
    await page.click('text=Create document');
    await page.waitForSelector('.notice.good:has-text("Created.")');
    await page.waitForSelector('h2:has-text("issues/shop-ideas.md")');
    const text = '---\nkind: issue\nstatus: "yes"\ntitle: Shop ideas\n---\n\nSell **more**.\n';
    equal(await ask('new document'), text, 'the document');
    await page.waitForSelector('.preview strong:has-text("more")');
    // The whole file can be written as text.
    await show(page, 'documents');
    await page.waitForSelector('td:has-text("Shop ideas")');
    await page.click('text=New document');
    await page.getByLabel('Title').fill('Other');
    await page.click('text=Edit as text');
    const source = await page.getByLabel('Whole file').inputValue();
    check(source.includes('title: Other'), source);
  },

  /** Edits that are not saved are lost only after a question; drafts of messages are kept. */
  async unsaved_edits() {
    const page = await open();
    await show(page, 'documents');
    await page.click('text=Login accepts empty passwords');
    const editor = page.locator('.editor');
    await editor.waitFor();
    const before = await editor.inputValue();
    await page.click('nav >> text=Runs');
    await page.waitForSelector('sv-runs');
    await page.goBack();
    await editor.waitFor();
    await editor.fill(`${before}More.`);
    await page.click('nav >> text=Runs');
    await page.waitForSelector('dialog:has-text("Leave without saving?")');
    await page.click('text=Stay here');
    equal(await editor.inputValue(), `${before}More.`, 'the text');
    check(page.url().includes('#/documents/'), page.url());
    await page.click('nav >> text=Runs');
    await page.click('text=Discard the changes');
    await page.waitForSelector('sv-runs');
    equal(await ask('document'), before, 'the document');
    // A new document that was begun is not lost either.
    await show(page, 'documents');
    await page.click('text=New document');
    await page.getByLabel('Title').fill('Begun');
    await page.click('text=← Documents');
    await page.click('text=Discard the changes');
    await page.waitForSelector('td:has-text("issues/1.md")');
    await show(page, 'channels/general');
    await page.fill('.composer textarea', 'half a thought');
    await page.click('nav >> text=Runs');
    await page.waitForSelector('sv-runs');
    await show(page, 'channels/general');
    await page.waitForSelector('.composer textarea');
    equal(await page.inputValue('.composer textarea'), 'half a thought', 'the draft');
    await page.reload();
    await page.waitForSelector('.composer textarea');
    equal(await page.inputValue('.composer textarea'), 'half a thought', 'the draft');
    const session = await ask('session hello');
    await show(page, `sessions/${session}`);
    await page.fill('.composer textarea', 'next');
    await show(page, 'runs');
    await page.waitForSelector('sv-runs');
    await show(page, `sessions/${session}`);
    await page.waitForSelector('sv-session');
    equal(await page.inputValue('.composer textarea'), 'next', 'the draft');
  },

  /** Names are converted, Enter posts, the author is "You", and a mention reaches its session. */
  async channels() {
    const page = await open();
    await show(page, 'channels');
    await page.getByLabel('New channel').fill('Team chat!');
    await page.waitForSelector('text=It will be called team-chat.');
    await page.click('text=Create channel');
    await page.waitForSelector('h2:has-text("# team-chat")');
    await page.waitForSelector('text=No messages yet.');
    await page.waitForSelector('.rows [aria-current]:has-text("new: write the first post")');
    equal(await focused(page), 'Post', 'focus');
    await page.keyboard.type('first line');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('second line');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.post:has-text("second line")');
    await page.keyboard.type('again');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.post:has-text("again")');
    equal(await page.locator('.post .kind').allTextContents(), ['You', 'You'], 'authors');
    await page.reload();
    await page.waitForSelector('.post:has-text("again")');
    equal(await page.locator('.post .kind').allTextContents(), ['You', 'You'], 'authors');
    // Another browser sees a name that people can read, live and after a reload.
    const other = await open();
    await show(other, 'channels/team-chat');
    await other.waitForSelector('.post:has-text("again")');
    equal(await other.locator('.post .kind').first().textContent(), 'web page', 'the author');
    await page.keyboard.type('live');
    await page.keyboard.press('Enter');
    await other.waitForSelector('.post:has-text("live") .kind:text-is("web page")');
    // A mention is completed from titles, and makes the session follow the channel.
    const session = await ask('session Ask the librarian: hello');
    await ask('wait for the answer');
    // It may be typed before the sessions are known.
    let release;
    const released = new Promise((resolve) => (release = resolve));
    const sessions = /\/api\/v1\/sessions\?limit=100$/;
    await page.route(sessions, async (route) => {
      await released;
      await route.continue();
    });
    await page.reload();
    await page.fill('.composer textarea', '');
    await page.focus('.composer textarea');
    await page.keyboard.type('Hello @lib');
    release();
    await page.waitForSelector('[role=option]:has-text("Ask the librarian")');
    await page.unroute(sessions);
    await page.waitForSelector('.post:has-text("live")');
    await checkAccessible(page, 'the list of sessions');
    await page.keyboard.press('Enter');
    equal(await page.inputValue('.composer textarea'), 'Hello @ask-the-librarian ', 'the text');
    await page.keyboard.type('please');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.notice:has-text("Sent to Ask the librarian.")');
    // The note is at the form, and not over the posts.
    const [note, form] = await page.$$eval('.channel-note, .composer', (parts) =>
      parts.map((part) => part.getBoundingClientRect()),
    );
    check(Math.abs(note.bottom - form.top) < 3, `the note ends at ${note.bottom}, ${form.top}`);
    await show(page, `sessions/${session}`);
    await page.waitForSelector('.item.user:has-text("please")');
    // Of two sessions with the same title, the chosen one is mentioned, and people read the title.
    await ask('wait for the answer');
    const twin = await ask('session Ask the librarian: hello');
    await ask('wait for the answer');
    await show(page, 'channels/other');
    await page.reload();
    await page.waitForSelector('text=No messages yet.');
    await page.focus('.composer textarea');
    await page.keyboard.type('@lib');
    await page.waitForSelector('[role=option] >> nth=1');
    await page.keyboard.press('Enter');
    const word = `@ask-the-librarian-${twin.slice(-4)} `;
    equal(await page.inputValue('.composer textarea'), word, 'the text');
    await page.keyboard.type('only you');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.post:has-text("@ask-the-librarian only you")');
    await show(page, `sessions/${twin}`);
    await page.waitForSelector('.item.user:has-text("only you")');
  },

  /** What another client begins appears: a channel in the list, its first post where it is open. */
  async channel_news() {
    const [writer, reader, other] = [await open(), await open(), await open()];
    await show(reader, 'channels/news');
    await reader.waitForSelector('text=No messages yet.');
    await show(other, 'channels');
    await other.waitForSelector('text=There are no channels yet.');
    await show(writer, 'channels/news');
    await send(writer, 'It begins');
    await reader.waitForSelector('.post:has-text("It begins")');
    const row = other.locator('.rows a', { hasText: '1 message' });
    await row.focus();
    await send(writer, 'It continues');
    await reader.waitForSelector('.post:has-text("It continues")');
    // The row is shown again, and keeps the focus.
    await other.waitForSelector('.rows a:focus:has-text("2 messages")');
  },

  /** A request that the stream reports while the list is loaded stays visible. */
  async asked_while_loading() {
    const page = await open();
    // The list is answered before the question, and arrives after it.
    let release;
    const released = new Promise((resolve) => (release = resolve));
    let listed;
    const isListed = new Promise((resolve) => (listed = resolve));
    await page.route('**/api/v1/approvals', async (route) => {
      const response = await route.fetch();
      listed();
      await released;
      await route.fulfill({ response });
    });
    await page.reload();
    await isListed;
    const session = await ask('session please');
    await show(page, `sessions/${session}`);
    await page.waitForSelector('sv-transcript .approval');
    await page.evaluate(async () => {
      const { approvals } = await import('/page/approval-store.js');
      window.isLoaded = new Promise((resolve) =>
        approvals.addEventListener('change', resolve, { once: true }),
      );
    });
    release();
    await page.evaluate(() => window.isLoaded.then(() => {}));
    equal(await page.locator('sv-transcript .approval').count(), 1, 'requests');
    await page.click('.approval .choice:has-text("Deny")');
    await page.click('.approval button[type=submit]');
    await page.waitForSelector('.approval', { state: 'detached' });
    await turnEnded(page, 1);
  },

  /** The options and the button of a request are visible, and the keyboard decides. */
  async asked_in_session() {
    const page = await open({ viewport: { width: 1280, height: 860 } });
    const session = await ask('session please');
    for (const [width, height] of [
      [1280, 860],
      [360, 700],
    ]) {
      await page.setViewportSize({ width, height });
      await show(page, `sessions/${session}`);
      await page.reload();
      await page.waitForSelector('sv-transcript .approval');
      const parts = page.locator('.approval :is(.choice, button[type=submit])');
      equal(await parts.count(), 5, 'options and the button');
      for (const part of await parts.all()) await waitUntilVisible(part);
      await page.click('.approval .choice:has-text("Deny")');
      await page.waitForSelector('.approval :text("Reason for the model")');
      await waitUntilVisible(page.locator('.approval button[type=submit]'));
      const scrolling = await page.$$eval('.session-body *', (elements) =>
        elements
          .filter((element) => element.scrollHeight > element.clientHeight + 2)
          .filter((element) => ['auto', 'scroll'].includes(getComputedStyle(element).overflowY))
          .map(({ localName }) => localName),
      );
      check(scrolling.length <= 1, `nested scrolling: ${scrolling}`);
    }
    await page.setViewportSize({ width: 1280, height: 860 });
    await page.reload();
    await page.waitForSelector('.approval');
    // The list says it, and the waiting call shows its command.
    await page.waitForSelector('.rows .state.waits:has-text("waits for approval")');
    const call = page.locator('.call', { hasText: 'waits for approval' });
    await call.locator('.call-args:has-text("rm -rf")').waitFor();
    // Digits select without a focus, and nothing is decided before Enter.
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press('Enter');
    await page.keyboard.press('1');
    check(await page.isChecked('input[value=once]'), 'a digit selects');
    check(await ask('doomed exists'), 'the command has not run');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.approval', { state: 'detached' });
    equal(await focused(page), '<b>Try', 'focus after the decision');
    await turnEnded(page, 1);
    check(!(await ask('doomed exists')), 'the command has run');
    await page.waitForSelector('.rows [aria-current] .state:has-text("idle")');
    // In a field, a digit is text.
    await send(page, 'please');
    await page.waitForSelector('.approval');
    await page.focus('.composer textarea');
    await page.keyboard.type('1');
    equal(await page.inputValue('.composer textarea'), '1', 'the message');
    equal(await page.locator('.approval input:checked').count(), 0, 'selected decisions');
    await page.locator('.approval').focus();
    await page.keyboard.press('4');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.item.result .state:has-text("denied")');
    await page.waitForSelector('.item.result .call-args:has-text("rm -rf doomed")');
  },

  /** The first line of the first message is the title, wherever a session is named. */
  async titles() {
    const page = await open();
    await page.click('text=New session');
    await page.fill('dialog textarea', 'hello');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('in two lines');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.session-title:text-is("hello")');
    equal(await focused(page), 'Message', 'focus after the dialog');
    await page.waitForSelector('.item.user:has-text("in two lines")');
    await turnEnded(page, 1);
    await page.waitForSelector('.rows .row-title:text-is("hello")');
    await page.fill('.side input[type=search]', 'hell');
    await page.waitForSelector('.rows .row-title:text-is("hello")');
    await page.click('.session-head >> text=Fork');
    await page.click('text=Create the copy');
    await page.waitForSelector('.session-title:text-is("hello (fork)")');
    await ask('untitled please');
    await show(page, 'approvals');
    await page.waitForSelector('.approval a:text-is("please")');
    check(/ in \/.*/.test(await page.textContent('.approval')), 'the folder of the session');
    await page.keyboard.press('1');
    await page.keyboard.press('Enter');
    await page.waitForSelector('text=No call needs approval.');
    equal(await focused(page), 'Approvals', 'focus after the decision');
    await show(page, 'runs');
    const row = page.locator('.rows a', { hasText: 'Delete the old build.' });
    await row.locator('.row-about:text-is("please")').waitFor();
    await row.click();
    await page.waitForSelector('sv-run .facts a:text-is("please")');
  },

  /** Calls of a running script have growing bars and live output. */
  async running_run() {
    const page = await open();
    await show(page, `sessions/${await ask('session follow')}`);
    await page.waitForSelector('.call .call-body:has-text("running 3 tests")');
    await page.click('.item.script a:text-is("timeline")');
    await page.waitForSelector('sv-run .live-output:has-text("running 3 tests")');
    equal(await page.locator('.lanes .bar.open').count(), 2, 'running calls');
    await page.waitForSelector('figcaption:has-text("up to 2 calls that ran or waited at once")');
    const tops = await page.$$eval('.lanes .bar', (bars) => bars.map((bar) => bar.style.top));
    check(tops[0] !== tops[1], `lanes ${tops}`);
    await checkAccessible(page, 'a running run');
    const label = () => page.getAttribute('.lanes .bar', 'aria-label');
    const first = await label();
    check(/running/.test(first), first);
    await until(async () => (await label()) !== first, 'the label of a bar changes');
    const width = await page.$eval('.lanes .bar', (bar) => bar.getBoundingClientRect().width);
    check(width > 100, `a bar of ${width} pixels`);
    // Each read shows the calls again: the keyboard stays at its call.
    const focusedCall = () =>
      page.evaluate(() => {
        const { activeElement: element } = document;
        return [element.localName, element.closest('.call')?.dataset.call];
      });
    await page.focus('sv-run .call >> nth=1 >> summary');
    const before = await focusedCall();
    check(before[0] === 'summary' && before[1], `focus at ${before}`);
    await ask('go');
    await page.waitForSelector('sv-run .call:has-text("exit 3")');
    equal(await focusedCall(), before, 'focus after the call has ended');
    await page.waitForSelector('sv-run .facts .state:has-text("completed")');
    equal(await page.locator('.lanes .bar.open').count(), 0, 'running calls after the end');
  },

  /** What a turn changed stays in the transcript, and is undone after a question. */
  async undo_turn() {
    const page = await open();
    const session = await ask('session keep notes');
    await show(page, `sessions/${session}`);
    await turnEnded(page, 1);
    await page.waitForSelector('.diff-box:has-text("Turn 1 changed 1 file")');
    await send(page, 'hello');
    await turnEnded(page, 2);
    await page.waitForSelector('.chunk .diff-box:has-text("Turn 1 changed 1 file")');
    await show(page, 'runs');
    await page.waitForSelector('sv-runs');
    await show(page, `sessions/${session}`);
    const line = page.locator('.diff-box', { hasText: 'Turn 1 changed 1 file' });
    await line.waitFor();
    equal(await line.count(), 1, 'lines about changes');
    await line.locator('summary').click();
    await line.locator('.diff :text("a note")').waitFor();
    await page.click('text=Changes');
    await page.waitForSelector('dialog h2:has-text("Turn 1 changed these files")');
    await page.click('text=Undo turn 1 …');
    const question = page.locator('dialog', { hasText: 'Undo the changes of turn 1?' });
    await question.locator('pre:has-text("notes.txt")').waitFor();
    await page.click('text=Keep the changes');
    check(await ask('notes exist'), 'the file is kept');
    await page.click('text=Changes');
    await page.click('text=Undo turn 1 …');
    await page.click('dialog button:text-is("Undo turn 1")');
    await page.waitForSelector('.notice:has-text("turn 1 were undone: notes.txt.")');
    check(!(await ask('notes exist')), 'the file is gone');
    // It says so afterwards, and offers it no more.
    await page.click('text=Changes');
    await page.waitForSelector('dialog h2:has-text("Turn 1 was undone")');
    equal(await page.locator('dialog button').allTextContents(), ['Close'], 'buttons');
    await page.click('dialog >> text=Close');
    await page.reload();
    await line.locator('summary').click();
    await line.locator('text=The files are as they were before the turn.').waitFor();
  },

  /** The tabs of the memory are above its content; a search is in the address. */
  async small_memory() {
    const page = await open({ viewport: { width: 360, height: 700 } });
    const session = await ask('session hello librarian');
    await ask('wait for the answer');
    for (const view of ['memory', 'memory/lessons', 'memory/topics']) {
      await show(page, view);
      await page.waitForSelector('.memory-content > *');
      const [tabs, content] = await page.$$eval('.tabs, .memory-content', (parts) =>
        parts.map((part) => part.getBoundingClientRect()),
      );
      check(tabs.bottom <= content.top && tabs.bottom < 300, `tabs of ${view}`);
    }
    // All views can be reached without scrolling sideways.
    for (const link of await page.locator('#views a').all()) {
      await waitUntilVisible(link);
    }
    await show(page, 'memory');
    await page.fill('sv-memory input', 'What did the librarian say?');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.item mark:has-text("librarian")');
    await page.waitForSelector('.item-head:has-text("has “librarian”")');
    await page.click(`.item a[href="#/sessions/${session}"]`);
    await page.waitForSelector('sv-session');
    await page.goBack();
    await page.waitForSelector('.item mark:has-text("librarian")');
    equal(await page.inputValue('sv-memory input'), 'What did the librarian say?', 'the question');
    await page.fill('sv-memory input', 'Which database?');
    await page.keyboard.press('Enter');
    await page.waitForSelector('text=No turn and no lesson contains one of these words: database.');
  },

  /** A login URL that was used shows a page, and leads a logged-in browser to the sessions. */
  async used_login() {
    const url = await ask('login');
    const page = await open({ login: false });
    await page.goto(url);
    await page.waitForSelector('sv-sessions');
    await page.goto(url);
    await page.waitForSelector('sv-sessions');
    const other = await open({ login: false });
    await other.goto(url);
    await other.waitForSelector('text=This login URL does not work any more');
    await other.waitForSelector('text=selvedge serve login');
    await other.click('text=Try again');
    await other.waitForSelector('text=This browser is not logged in');
    equal(other.url(), `${base}/`, 'the address');
  },
};
