// Every page: accessible, light, fast, by keyboard, without scripts, with hostile texts and code, and for
// those who have the role; and every change, with scripts and without.

import assert from 'node:assert/strict';
import { ACTIONS, PAGES } from './console_pages.mjs';
import { HOSTILE, makeData } from './data.mjs';
import {
  assertAccessible,
  assertFits,
  consoleUrl,
  eventually,
  look,
  run,
  signIn,
  stranger,
  subject,
  visitor,
} from './helpers.mjs';
import { plantedCodeDoesNotRun } from './planted.mjs';

// Without those that differ in their data alone, but for long runs.
const OWN_PAGES = PAGES.filter((entry) => !entry.variant || process.env.SOAK);
const MAX_WEIGHT = 150 * 1024;
const CONTROLS = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]';

// Opens each page in a context of its own kind.
async function eachPage(browser, options, act, pages = PAGES) {
  const signedIn = await visitor(browser);
  const storageState = await signedIn.storageState();
  await signedIn.close();
  for (const page of pages) {
    const context = await stranger(browser, page.stranger ? options : { storageState, ...options });
    await act(await context.newPage(), page, context);
    await context.close();
  }
}

async function open(page, { path, prepare }) {
  const response = await page.goto(consoleUrl() + path);
  assert.equal(response.status(), 200, path);
  await page.locator('h1').waitFor();
  await prepare?.(page);
}

// Makes every change by the forms of the pages, and looks at the other instance.
async function makeChanges(browser, options) {
  const hasScripts = options.javaScriptEnabled !== false;
  const page = await (await visitor(browser, options)).newPage();
  const other = await (await visitor(browser, { at: consoleUrl(1) })).newPage();
  const way = { tag: hasScripts ? 'scripts' : 'plain', hasScripts, other, look };
  for (const action of ACTIONS) {
    const began = Date.now();
    try {
      if (action.path) await page.goto(consoleUrl() + action.path);
      await action.act(page, way);
      if (action.says) await page.locator('main', { hasText: action.says }).waitFor();
    } catch (error) {
      await page.screenshot({ path: `${subject.pictures}/failed-${way.tag}.png`, fullPage: true });
      throw new Error(`${action.name}, ${page.url()}: ${await page.locator('main').innerText()}`, { cause: error });
    }
    console.log(`${way.tag}: ${action.name} (${Date.now() - began} ms)`);
  }
}

await run({
  'data is shown': async (browser) => {
    const page = await (await visitor(browser)).newPage();
    await page.goto(`${consoleUrl()}now`);
    await page.locator('p.live.good').waitFor();
    await makeData(page);
    await page.locator('tbody th', { hasText: 'pay' }).first().waitFor();
  },

  'axe finds nothing, light and dark, and pages fit': async (browser) => {
    for (const [colorScheme, width] of [['light', 1280], ['dark', 390]]) {
      const options = { colorScheme, viewport: { width, height: 900 } };
      await eachPage(browser, options, async (page, entry) => {
        await open(page, entry);
        const path = `${subject.pictures}/${entry.name}-${colorScheme}-${width}.png`;
        await page.screenshot({ path, fullPage: true });
        if (subject.book && width === 1280 && entry.book) {
          await page.setViewportSize({ width: 1280, height: entry.book });
          await page.evaluate(() => {
            // Small, as the pictures must be.
            for (const help of document.querySelectorAll('details.help')) help.open = false;
            for (const text of document.querySelectorAll('.editor textarea')) {
              Object.assign(text.style, { minHeight: '0', height: '19rem' });
            }
            scrollTo(0, 0);
          });
          await page.screenshot({ path: `${subject.book}/console-${entry.name}.png` });
        }
        await page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = true)));
        await assertAccessible(page, `${entry.name} ${colorScheme} ${width}`);
        if (width === 390) await assertFits(page, entry.name);
      }, width === 390 ? PAGES : OWN_PAGES);
    }
  },

  'pages are light, and paint soon': async (browser) => {
    await eachPage(browser, {}, async (page, entry, context) => {
      const session = await context.newCDPSession(page);
      await session.send('Network.enable');
      let weight = 0;
      session.on('Network.loadingFinished', ({ encodedDataLength }) => (weight += encodedDataLength));
      const errors = [];
      page.on('pageerror', (error) => errors.push(String(error)));
      page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
      const elsewhere = [];
      page.on('request', (request) => request.url().startsWith(consoleUrl()) || elsewhere.push(request.url()));
      await open(page, entry);
      await eventually('a first paint', async () =>
        page.evaluate(() => performance.getEntriesByName('first-contentful-paint').length > 0),
      );
      const paint = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime);
      console.log(`${entry.name}: ${(weight / 1024).toFixed(1)} KiB, first paint ${paint.toFixed(0)} ms`);
      assert.ok(weight > 0 && weight <= MAX_WEIGHT, `${entry.name}: ${weight} bytes`);
      assert.deepEqual([errors, elsewhere], [[], []], entry.name);
    }, OWN_PAGES);
  },

  'every control is reached by keyboard': async (browser) => {
    await eachPage(browser, {}, async (page, entry) => {
      await open(page, entry);
      const first = await page.evaluate(
        (controls) => document.querySelector(controls).className + document.querySelectorAll('[tabindex="1"]').length,
        CONTROLS,
      );
      assert.equal(first, 'skip0', `${entry.name}: the skip link is the first`);
      await page.locator('.skip').focus();
      assert.ok((await page.locator('.skip').boundingBox()).x >= 0, 'it is seen');
      await page.keyboard.press('Enter');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'content', entry.name);
      await page.reload();
      const count = await page.evaluate((controls) => {
        document.activeElement.blur();
        let number = 0;
        for (const control of document.querySelectorAll(controls)) {
          const isOfGroup = control.type === 'radio' && !control.checked;
          if (control.checkVisibility() && !isOfGroup) control.dataset.control = number++;
        }
        return number;
      }, CONTROLS);
      const reached = new Set();
      const unmarked = [];
      for (let step = 0; step < count * 2 + 10 && reached.size < count; step += 1) {
        await page.keyboard.press('Tab');
        const at = await page.evaluate(() => {
          const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
          const number = document.activeElement.dataset.control;
          const isMarked = outlineStyle !== 'none' && outlineWidth !== '0px';
          return { number, isMarked, html: document.activeElement.outerHTML.slice(0, 200) };
        });
        if (at.number !== undefined) {
          reached.add(at.number);
          if (!at.isMarked) unmarked.push(at.html);
        }
      }
      const missed = await page.evaluate(
        (reached) =>
          [...document.querySelectorAll('[data-control]')]
            .filter((one) => !reached.includes(one.dataset.control))
            .map((one) => one.outerHTML.slice(0, 200)),
        [...reached],
      );
      assert.deepEqual(missed, [], `${entry.name}: not reached by Tab`);
      assert.deepEqual(unmarked, [], `${entry.name}: the focus is not seen`);
    }, OWN_PAGES);
  },

  'hostile texts are text': async (browser) => {
    const assertHarmless = async (page, what) => {
      const found = await page.evaluate(() => ({
        pwned: globalThis.pwned,
        hidden: /[\u0000\u202e\u2066]/.test(document.body.innerText),
        scripts: [...document.scripts].filter((script) => !script.src.includes('/assets/')).length,
        elements: document.querySelectorAll('[onerror], [onload], main img').length,
      }));
      assert.deepEqual(found, { pwned: undefined, hidden: false, scripts: 0, elements: 0 }, what);
    };
    await eachPage(browser, {}, async (page, entry) => {
      await open(page, entry);
      await assertHarmless(page, entry.name);
      if (entry.hostile) {
        // Long texts are folded.
        await page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = true)));
        const text = await page.locator('main').innerText();
        for (const shown of entry.hostile) {
          assert.ok(text.includes(shown), `${entry.name} shows ${shown}`);
        }
      }
      for (const value of entry.reflects ? HOSTILE : []) {
        const query = new URLSearchParams(entry.reflects.map((field) => [field, value]));
        await page.goto(`${consoleUrl()}${entry.path.split('?')[0]}?${query}`);
        await assertHarmless(page, `${entry.name} ${value}`);
      }
    });
  },

  'planted code does not run, in any page': (browser) => plantedCodeDoesNotRun(browser, OWN_PAGES),

  'pages are for those who have the role': async (browser) => {
    for (const [role, fallback] of [['operate', 200], ['shop', 200], ['check', undefined]]) {
      const context = await stranger(browser);
      const page = await context.newPage();
      if (role === 'check') {
        await page.goto(`${consoleUrl()}sign-in`);
        await page.getByLabel('Token').fill(subject.tokens.check);
        await page.locator('button[value=token]').click();
        await page.locator('.problem').waitFor();
        continue;
      }
      await signIn(page, subject.tokens[role]);
      const seen = [];
      for (const entry of PAGES.filter((entry) => !entry.stranger)) {
        const response = await context.request.get(consoleUrl() + entry.path);
        const meant = entry[role] ?? fallback;
        if (response.status() !== meant) seen.push(`${entry.name}: ${response.status()} instead of ${meant}`);
      }
      assert.deepEqual(seen, [], role);
    }
  },

  'every change is made with scripts': (browser) => makeChanges(browser, {}),

  'every change is made without scripts': (browser) => makeChanges(browser, { javaScriptEnabled: false }),

  'pages work without scripts': async (browser) => {
    const context = await stranger(browser, { javaScriptEnabled: false });
    const page = await context.newPage();
    await signIn(page, subject.tokens.admin);
    for (const entry of PAGES.filter((entry) => !entry.stranger)) {
      await open(page, entry);
      assert.ok((await page.locator('main').innerText()).length > 50, entry.name);
    }
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.waitForURL(`${consoleUrl()}sign-in`);
    await page.goto(`${consoleUrl()}now`);
    assert.match(page.url(), /sign-in\?next=now/);
  },
});
