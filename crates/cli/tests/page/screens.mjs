// What every screen needs: axe-core finds nothing serious, and nothing is cut off or moves.

import { ask, base, check, checkAccessible, equal, open, show } from './browser.mjs';

export const screenFlows = {
  /** axe-core finds nothing serious, in both themes and on a small screen; nothing is cut off. */
  async accessible() {
    const session = await ask('session follow');
    await ask('go');
    await ask('wait for the answer');
    const asked = await ask('session please');
    await ask('memory session');
    // Each view with an element that it has when its data was loaded.
    const views = [
      ['sessions', 'sv-sessions .rows li'],
      [`sessions/${session}`, '.item.assistant:has-text("done")'],
      [`sessions/${asked}`, 'sv-session .approval'],
      ['approvals', 'sv-approvals .approval'],
      ['runs', 'sv-runs .rows li'],
      ['channels/a', 'sv-channels .posts'],
      ['documents', 'sv-documents td'],
      ['memory', 'sv-memory form'],
      [`memory/${session}`, 'sv-memory .level-columns'],
      ['memory/lessons', 'article.card'],
      ['memory/topics', 'sv-memory .chart'],
      ['health', 'tr:has-text("sandbox")'],
    ];
    const sizes = [
      [1280, 800, 'light'],
      [360, 740, 'dark'],
      [2560, 1440, 'light'],
      [3840, 2160, 'dark'],
    ];
    for (const [width, height, colorScheme] of sizes) {
      const page = await open({ viewport: { width, height }, colorScheme });
      for (const [view, element] of views) {
        await page.evaluate((hash) => {
          location.hash = `#/${hash}`;
        }, view);
        await page.waitForSelector(element);
        await checkAccessible(page, `${view} at ${width}`);
        const over = await page.evaluate(() => [
          document.documentElement.scrollWidth - innerWidth,
          document.documentElement.scrollHeight - innerHeight,
        ]);
        check(
          over.every((pixels) => pixels <= 0),
          `${view} at ${width} fits: ${over}`,
        );
      }
      await page.context().close();
    }
    // With the keyboard alone: from the start of the page to a new session.
    const page = await open();
    await page.evaluate(() => document.activeElement.blur());
    const texts = [];
    for (let step = 0; step < 12 && !texts.includes('New session'); step += 1) {
      await page.keyboard.press('Tab');
      texts.push(await page.evaluate(() => document.activeElement.textContent));
    }
    check(texts.includes('New session') && texts[0] === 'Skip to content', texts.join(', '));
    await page.keyboard.press('Enter');
    await page.keyboard.type('hello');
    await page.keyboard.press('Tab');
    await page.keyboard.type('Typed');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.item.assistant:has-text("You said hello")');
    check(page.url().startsWith(base), 'the page stays on its server');
  },

  /** axe-core finds nothing serious in the login, in dialogs, in runs that have ended and editors. */
  async accessible_parts() {
    const session = await ask('session keep notes');
    await ask('wait for the answer');
    for (const colorScheme of ['light', 'dark']) {
      const login = await open({ login: false, colorScheme });
      await login.waitForSelector('text=selvedge serve login');
      await checkAccessible(login, `the login, ${colorScheme}`);
      await login.context().close();
      const page = await open({ colorScheme });
      const checkPart = (what) => checkAccessible(page, `${what}, ${colorScheme}`);
      await page.click('text=New session');
      await page.waitForSelector('dialog option[value=careful]', { state: 'attached' });
      await checkPart('the dialog of a new session');
      await page.click('dialog >> text=Cancel');
      await show(page, `sessions/${session}`);
      await page.waitForSelector('.item.script');
      await page.click('.session-head >> text=Fork');
      await page.waitForSelector('dialog h2');
      await checkPart('a question');
      await page.click('dialog >> text=Cancel');
      await page.click('.session-head >> text=Changes');
      await page.waitForSelector('dialog .diff .add');
      await checkPart('the changes of a turn');
      await page.click('dialog >> text=Close');
      await page.click('.item.script >> text=timeline');
      await page.waitForSelector('sv-run section[aria-label=Result]');
      await page.click('sv-run .call summary');
      await page.waitForSelector('sv-run .call[open] h4');
      await checkPart('a run that has ended');
      await page.click('button:text-is("Replay")');
      await page.waitForSelector('section[aria-label=Replay] .item-head');
      await checkPart('a replay');
      await page.click('button:text-is("Edit and resume")');
      await page.fill('textarea[aria-label=Script]', 'tools.');
      await page.keyboard.press('ArrowDown');
      await page.waitForSelector('[role=option][aria-selected=true]');
      await checkPart('the editor of a script');
      await page.click('form >> text=Cancel');
      await show(page, 'documents');
      await page.click('text=Login accepts empty passwords');
      await page.waitForSelector('.preview code');
      await checkPart('the editor of a document');
      await page.context().close();
    }
  },

  /** If a person wants no motion, nothing moves: neither colours nor what is scrolled to. */
  async reduced_motion() {
    const page = await open({ reducedMotion: 'reduce' });
    await show(page, `sessions/${await ask('session follow')}`);
    await page.waitForSelector('.call .call-body:has-text("running 3 tests")');
    await page.click('.item.script >> text=timeline');
    await page.waitForSelector('sv-run .live-output:has-text("running 3 tests")');
    await page.hover('.lanes .bar');
    const moving = await page.evaluate(() => {
      const styles = [...document.querySelectorAll('*')].map((part) => getComputedStyle(part));
      const moves = ({ animationName, transitionDuration, scrollBehavior }) =>
        animationName !== 'none' || transitionDuration !== '0s' || scrollBehavior !== 'auto';
      return [styles.filter(moves).length, document.getAnimations().length];
    });
    equal(moving, [0, 0], 'what moves');
    await ask('go');
    await page.waitForSelector('sv-run .facts .state:has-text("completed")');
  },
};
