// What the page says in states that take long to reach: answers of the server are replaced.

import { ask, check, equal, open, show } from './browser.mjs';

/** Replaces answers from an address by what `make` returns for them. */
async function change(page, address, make) {
  await page.route(address, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: make(await response.json()) });
  });
}

export const stateFlows = {
  /** A session whose messages no server answers does not work. */
  async unserved_session() {
    const page = await open();
    await ask('session hello');
    await ask('wait for the answer');
    await change(page, /\/api\/v1\/sessions\?/, ({ sessions }) => ({
      sessions: sessions.map((session) => ({ ...session, state: 'unserved', queued: 1 })),
    }));
    await page.waitForSelector('.rows .state.waits:text-is("waits: no server serves its folder")');
    await page.waitForSelector('.rows .tag:text-is("1 queued")');
    const isWide = await page.$eval('.side', (side) => side.scrollWidth > side.clientWidth);
    check(!isWide, 'the words fit the list');
  },

  /** A login without a folder says what to do. */
  async no_folder() {
    const page = await open();
    await change(page, '**/api/v1/workspaces', () => ({ workspaces: [] }));
    const error = '.error:has-text("this login has no folder to work in")';
    const command = 'code:has-text("selvedge serve token create")';
    await page.click('text=New session');
    await page.waitForSelector(`dialog ${error} ${command}`);
    await page.click('dialog >> text=Cancel');
    for (const view of ['documents', 'health']) {
      await show(page, view);
      await page.waitForSelector(`sv-${view} ${error} ${command}`);
    }
    await show(page, 'memory/lessons');
    await page.click('text=Add a lesson');
    await page.waitForSelector(`form ${error} ${command}`);
  },

  /** The list of runs can show those with failures only. */
  async failed_runs() {
    const page = await open();
    await ask('session keep notes');
    await ask('wait for the answer');
    await ask('session fail');
    await ask('wait for the answer');
    await show(page, 'runs');
    await page.waitForSelector('.rows li >> nth=1');
    await page.getByLabel('Which runs').selectOption('failed');
    await page.waitForSelector('text=1 run with failures among the last 2 runs.');
    equal(await page.locator('.rows .state').allTextContents(), ['✗ failed'], 'the shown runs');
    await page.getByLabel('Which runs').selectOption('');
    await page.waitForSelector('.rows li >> nth=1');
  },

  /** Health is read in parts, and says which runs it looked at. */
  async health_words() {
    const page = await open();
    const texts = await page.evaluate(async () => {
      const { failedRunTable, failedRuns, summary } = await import('/page/health-summary.js');
      const now = Date.now();
      const run = (age) => ({ id: `scr_${age}`, state: 'completed', started_ms: now - age });
      const today = Array.from({ length: 100 }, (_, at) => run(at));
      const shown = (runs) => failedRunTable(failedRuns(runs, 100)).textContent;
      const parts = { checks: [], servers: [], failed: failedRuns([], 100) };
      const broken = { ...run(1), state: 'failed', error: 'Error' };
      const failed = failedRuns([broken, ...today.slice(1)], 100);
      return [
        summary({ ...parts, errors: null }).textContent,
        summary({ ...parts, errors: [] }).textContent,
        summary({ ...parts, errors: [], failed }).textContent,
        shown(today),
        shown([...today.slice(1), run(2 * 86_400_000)]),
      ];
    });
    equal(
      texts,
      [
        'Checks run …',
        'All parts work.',
        'All parts work.Worth a look: 1 script failed among the last 100.',
        'No script has failed among the last 100.',
        'No script has failed in the last 24 hours.',
      ],
      'what Health says',
    );
  },
};
