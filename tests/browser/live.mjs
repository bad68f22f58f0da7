// Pages that keep themselves up to date: in one tab and in many, while Redis and sessions come and go.

import assert from 'node:assert/strict';
import { advance, api, ask, consoleUrl, eventually, run, signIn, stranger, subject, visitor } from './helpers.mjs';

const LIVE = 'p.live.good';
const AWAY = 'The store does not answer.';

// Opens the page and waits until it is live.
async function watch(context, number = 0) {
  const page = await context.newPage();
  await page.goto(`${consoleUrl(number)}now`);
  await page.locator(LIVE).waitFor();
  // A load of the page would lose it.
  await page.evaluate(() => (globalThis.isLoadedOnce = true));
  return page;
}

async function pay(times, number) {
  for (let time = 0; time < times; time += 1) {
    const { status } = await api('POST', '/v1/check', { userId: `u${time}`, resource: '/pay' }, number);
    assert.ok(status === 200 || status === 429, `${status}`);
  }
}

// Returns the decisions of the rule `pay` that a page shows.
async function decisions(page) {
  const row = page.locator('tr', { has: page.locator('th', { hasText: /^pay$/ }) }).first();
  const cell = row.locator('td.right').nth(2).locator('data.number');
  if (!(await cell.count())) return 0;
  return Number(await cell.getAttribute('value'));
}

// Moves the time until pages show a number.
async function shows(pages, number) {
  await eventually(`${number} decisions`, async () => {
    await advance(pages);
    const shown = await Promise.all(pages.map(decisions));
    return shown.every((one) => one === number) || shown;
  });
  for (const page of pages) {
    assert.equal(await page.evaluate(() => globalThis.isLoadedOnce), true, 'it was loaded again');
    await page.locator(LIVE).waitFor();
  }
}

let made = 0;

await run({
  'traffic of both instances is seen without a reload': async (browser) => {
    const first = await watch(await visitor(browser));
    const second = await watch(await visitor(browser, { at: consoleUrl(1) }), 1);
    await pay(3, 0);
    await pay(4, 1);
    made += 7;
    await shows([first, second], made);
    assert.ok(await first.locator('.chart canvas').count(), 'the chart of the new numbers is drawn');
    await first.locator('details summary').first().click();
    await pay(1, 1);
    made += 1;
    await shows([first, second], made);
    assert.ok(await first.locator('details[open]').count(), 'what was opened stays open');
  },

  'eight tabs share a stream, and another takes over': async (browser) => {
    const context = await visitor(browser);
    const streams = [];
    context.on('request', (request) => request.url().includes('now-events') && streams.push(request.frame().page()));
    const pages = [];
    for (let tab = 0; tab < 8; tab += 1) pages.push(await watch(context));
    await pay(1, 0);
    made += 1;
    await shows(pages, made);
    assert.equal(streams.length, 1, 'streams of eight tabs');
    const holder = pages.indexOf(streams[0]);
    await pages.splice(holder, 1)[0].close();
    await eventually('another tab has the stream', async () => streams.length === 2 || streams.length);
    await pay(1, 1);
    made += 1;
    await shows(pages, made);
  },

  'a hidden tab has no stream': async (browser) => {
    const context = await visitor(browser);
    const ended = [];
    let opened = 0;
    context.on('request', (request) => (opened += request.url().includes('now-events') ? 1 : 0));
    context.on('requestfailed', (request) => request.url().includes('now-events') && ended.push(request.url()));
    const page = await watch(context);
    // The browser of this test hides no tab, so the page is told that it is hidden.
    const hide = (isHidden) =>
      page.evaluate((isHidden) => {
        Object.defineProperty(document, 'hidden', { configurable: true, value: isHidden });
        document.dispatchEvent(new Event('visibilitychange'));
      }, isHidden);
    await hide(true);
    await eventually('the stream has ended', async () => ended.length === 1 || ended.length);
    await pay(1, 0);
    made += 1;
    await ask('advance');
    assert.equal(opened, 1);
    await hide(false);
    await eventually('a stream begins', async () => opened === 2 || opened);
    await page.locator(LIVE).waitFor();
    await shows([page], made);
  },

  'the page says that Redis is away, and recovers': async (browser) => {
    const page = await watch(await visitor(browser));
    await ask('kill-redis');
    await page.locator('p.problem', { hasText: AWAY }).waitFor();
    await ask('restart-redis');
    await page.locator('p.problem', { hasText: AWAY }).waitFor({ state: 'detached' });
    assert.equal(await page.evaluate(() => globalThis.isLoadedOnce), true);
    await page.locator(LIVE).waitFor();
  },

  'a session that ends is told, and another begins': async (browser) => {
    const context = await visitor(browser);
    const page = await watch(context);
    const other = await context.newPage();
    await other.goto(`${consoleUrl()}instances`);
    await other.getByRole('button', { name: 'Sign out' }).click();
    await page.getByText('Your session has ended').waitFor();
    await page.getByRole('link', { name: 'Sign in' }).click();
    await page.waitForURL(/sign-in\?next=now/);
    await page.getByLabel('Token').fill(subject.tokens.admin);
    await page.locator('button[value=token]').click();
    await page.locator(LIVE).waitFor();
  },

  'roles that end are told': async (browser) => {
    const context = await stranger(browser);
    await signIn(await context.newPage(), subject.tokens.operate);
    const page = await watch(context);
    await ask('take-roles');
    await page.getByText('so this page is no longer live').waitFor();
  },
});
