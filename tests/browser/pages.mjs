// Every page: accessible, light, fast, by keyboard, without scripts, with hostile texts and code, and for
// those who have the role.

import assert from 'node:assert/strict';
import { PAGES } from './console_pages.mjs';
import { HOSTILE, makeData } from './data.mjs';
import {
  assertAccessible,
  assertFits,
  assertLight,
  consoleUrl,
  picture,
  run,
  signIn,
  stranger,
  subject,
  visitor,
} from './helpers.mjs';
import { plantedCodeDoesNotRun } from './planted.mjs';

// Without those that differ in their data alone, but for long runs.
const OWN_PAGES = PAGES.filter((entry) => !entry.variant || process.env.SOAK);
const CONTROLS = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]';

// Opens each page, in one tab for those who have signed in and another for strangers.
async function eachPage(browser, options, act, pages = PAGES) {
  const tabs = {
    signedIn: await (await visitor(browser, options)).newPage(),
    stranger: await (await stranger(browser, options)).newPage(),
  };
  for (const entry of pages) await act(entry.stranger ? tabs.stranger : tabs.signedIn, entry);
}

async function open(page, { path, prepare }) {
  const response = await page.goto(consoleUrl() + path);
  assert.equal(response.status(), 200, path);
  await page.locator('h1').waitFor();
  await prepare?.(page);
}

// Opens a page, and asserts that nothing fails in it and that it loads nothing from elsewhere.
async function openWatched(page, entry) {
  const wrong = [];
  const watches = {
    pageerror: (error) => wrong.push(String(error)),
    console: (message) => message.type() === 'error' && wrong.push(message.text()),
    request: (request) => request.url().startsWith(consoleUrl()) || wrong.push(request.url()),
  };
  for (const [event, watch] of Object.entries(watches)) page.on(event, watch);
  await assertLight(page, entry.name, () => open(page, entry));
  for (const [event, watch] of Object.entries(watches)) page.off(event, watch);
  assert.deepEqual(wrong, [], entry.name);
}

// Asserts that every table that is marked as a chart is drawn as one.
async function assertCharts(page, name) {
  const marked = await page.locator('figure[data-chart]:has(tr[data-at])').count();
  await page.waitForFunction((marked) => document.querySelectorAll('.chart .uplot canvas').length === marked, marked);
  const empty = await page.evaluate(() =>
    [...document.querySelectorAll('.chart canvas')]
      .filter((one) => !one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some((byte) => byte > 0))
      .map((one) => one.closest('figure').id),
  );
  assert.deepEqual(empty, [], name);
  if (['now', 'rule', 'project'].includes(name)) assert.ok(marked > 0, `${name} has a chart`);
}

// Asserts that Tab reaches every control of a page that was just opened, and that the focus is seen.
async function assertKeyboard(page, name) {
  const { first, count } = await page.evaluate((controls) => {
    document.activeElement.blur();
    const first = document.querySelector(controls).className + document.querySelectorAll('[tabindex="1"]').length;
    let count = 0;
    for (const control of document.querySelectorAll(controls)) {
      const isOfGroup = control.type === 'radio' && !control.checked;
      if (control.checkVisibility() && !isOfGroup) control.dataset.control = count++;
    }
    return { first, count };
  }, CONTROLS);
  assert.equal(first, 'skip0', `${name}: the skip link is the first`);
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
  assert.deepEqual(missed, [], `${name}: not reached by Tab`);
  assert.deepEqual(unmarked, [], `${name}: the focus is not seen`);
  await page.locator('.skip').focus();
  assert.ok((await page.locator('.skip').boundingBox()).x >= 0, `${name}: it is seen`);
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'content', name);
}

async function takePictureOfBook(page, entry) {
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
  await page.setViewportSize({ width: 1280, height: 900 });
  await open(page, entry);
}

const openFolded = (page) =>
  page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = true)));

// Asserts that a text which a stranger chose is text in a page.
async function assertHarmless(page, what) {
  const found = await page.evaluate(() => ({
    pwned: globalThis.pwned,
    hidden: /[\u0000\u202e\u2066]/.test(document.body.innerText),
    scripts: [...document.scripts].filter((script) => !script.src.includes('/assets/')).length,
    elements: document.querySelectorAll('[onerror], [onload], main img').length,
  }));
  assert.deepEqual(found, { pwned: undefined, hidden: false, scripts: 0, elements: 0 }, what);
}

await run({
  'data is shown': async (browser) => {
    const page = await (await visitor(browser)).newPage();
    await page.goto(`${consoleUrl()}now`);
    await page.locator('p.live.good').waitFor();
    await makeData(page);
    await page.locator('tbody th', { hasText: 'pay' }).first().waitFor();
  },

  'pages are light, harmless, accessible in both themes and by keyboard, and fit': async (browser) => {
    await eachPage(browser, {}, async (page, entry) => {
      const isOwn = OWN_PAGES.includes(entry);
      await page.emulateMedia({ colorScheme: 'light' });
      await page.setViewportSize({ width: 1280, height: 900 });
      await openWatched(page, entry);
      await assertCharts(page, entry.name);
      await picture(page, `${entry.name}-light-1280`);
      if (subject.book && entry.book) await takePictureOfBook(page, entry);
      if (isOwn) await assertKeyboard(page, entry.name);
      await assertHarmless(page, entry.name);
      await openFolded(page);
      const text = await page.locator('main').innerText();
      for (const shown of entry.hostile ?? []) assert.ok(text.includes(shown), `${entry.name} shows ${shown}`);
      if (isOwn) await assertAccessible(page, `${entry.name} light`);
      await page.emulateMedia({ colorScheme: 'dark' });
      await page.setViewportSize({ width: 390, height: 900 });
      await picture(page, `${entry.name}-dark-390`);
      await assertAccessible(page, `${entry.name} dark`);
      await assertFits(page, entry.name);
    });
  },

  'texts of the query are text': async (browser) => {
    const context = await visitor(browser);
    const page = await context.newPage();
    const values = [HOSTILE.slice(0, 3).join(' '), ...(process.env.SOAK ? HOSTILE : [])];
    for (const { name, path, reflects } of PAGES.filter((entry) => entry.reflects)) {
      const at = `${consoleUrl()}${path.split('?')[0]}`;
      for (const value of values) {
        await page.goto(`${at}?${new URLSearchParams(reflects.map((field) => [field, value]))}`);
        await assertHarmless(page, `${name} ${value}`);
      }
    }
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

  'pages work without scripts': async (browser) => {
    const context = await stranger(browser, { javaScriptEnabled: false });
    const page = await context.newPage();
    await signIn(page, subject.tokens.admin);
    for (const entry of OWN_PAGES.filter((entry) => !entry.stranger)) {
      await open(page, entry);
      assert.ok((await page.locator('main').innerText()).length > 50, entry.name);
      assert.equal(await page.locator('canvas').count(), 0, entry.name);
      if (await page.locator('figure[data-chart]').count()) {
        await page.locator('figure summary').first().click();
        assert.ok(await page.locator('figure tr[data-at]').first().isVisible(), `${entry.name} has the table`);
      }
    }
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.waitForURL(`${consoleUrl()}sign-in`);
    await page.goto(`${consoleUrl()}now`);
    assert.match(page.url(), /sign-in\?next=now/);
  },
});
