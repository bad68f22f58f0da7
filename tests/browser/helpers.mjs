// What the scripts share: the browser, the subject that the test started, and a list of checks.
//
// The test passes the subject in SUBJECT, as JSON: addresses, tokens and the like. A script asks the test
// to do what a browser can't (`ask`): to move the time, or to kill Redis.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

export const subject = JSON.parse(process.env.SUBJECT);
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
// Largest page with all that it loads, in bytes.
const MAX_WEIGHT = 150 * 1024;
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// Lets the test do something, and returns what it says.
export async function ask(what) {
  console.log(`ask ${what}`);
  const { value } = await answers.next();
  return value;
}

// Runs checks one after another, in one browser, and ends the process.
export async function run(checks, flags = []) {
  const browser = await chromium.launch({
    executablePath: subject.chromium,
    args: [...FLAGS, ...flags],
  });
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    const began = Date.now();
    try {
      await check(browser);
      console.log(`ok ${name} (${Date.now() - began} ms)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}: ${error.stack}\n${error.cause?.stack ?? ''}`);
    } finally {
      for (const context of browser.contexts()) await context.close();
    }
  }
  await browser.close();
  process.exit(failed ? 1 : 0);
}

export const consoleUrl = (number = 0) => `http://${subject.consoles[number]}/console/`;

// Opens a context whose dialogs and errors fail the check, and which has signed in.
export async function visitor(browser, options = {}) {
  const { token = subject.tokens?.admin, at = consoleUrl(), ...rest } = options;
  const context = await stranger(browser, rest);
  if (token) {
    const page = await context.newPage();
    await signIn(page, token, at);
    await page.close();
  }
  return context;
}

export async function stranger(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(20_000);
  context.on('dialog', (dialog) => {
    console.log(`FAILED: a dialog says ${dialog.message()}`);
    process.exit(1);
  });
  return context;
}

// Signs in by the form.
export async function signIn(page, token, at = consoleUrl()) {
  await page.goto(`${at}sign-in`);
  await page.getByLabel('Token').fill(token);
  await page.locator('button[value=token]').click();
  await page.waitForURL(`${at}now`);
}

// Calls the API of an instance, as an administrator or with an API key.
export async function api(method, path, body, number = 0, key = undefined) {
  const token = subject.tokens?.admin;
  const identity = key ? { 'x-api-key': key } : token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(`http://${subject.https[number]}${path}`, {
    method,
    headers: { 'content-type': 'application/json', ...identity },
    body: body && JSON.stringify(body),
  });
  return { status: response.status, body: await response.json().catch(() => null) };
}

// Loads a page as for the first time, waits until it is painted, and asserts that it is light.
export async function assertLight(page, what, load) {
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  await session.send('Network.setCacheDisabled', { cacheDisabled: true });
  let weight = 0;
  session.on('Network.loadingFinished', ({ encodedDataLength }) => (weight += encodedDataLength));
  await load();
  const paint = await page.evaluate(
    () =>
      new Promise((resolve) => {
        const isContent = ({ name }) => name === 'first-contentful-paint';
        const observer = new PerformanceObserver((list) => {
          const found = list.getEntries().find(isContent);
          if (found) resolve(found.startTime);
        });
        observer.observe({ type: 'paint', buffered: true });
      }),
  );
  await session.detach();
  console.log(`${what}: ${(weight / 1024).toFixed(1)} KiB, first paint ${paint.toFixed(0)} ms`);
  assert.ok(weight > 0 && weight <= MAX_WEIGHT, `${what}: ${weight} bytes`);
}

// Takes a picture, where pictures are wanted.
export async function picture(page, name) {
  if (!subject.takes_pictures) return;
  await page.screenshot({ path: `${subject.pictures}/${name}.png`, fullPage: true });
}

// Asserts that axe finds nothing in a page.
export async function assertAccessible(page, what) {
  if (!(await page.evaluate(() => 'axe' in globalThis))) await page.evaluate(AXE);
  const options = { resultTypes: ['violations'], preload: false };
  const { violations } = await page.evaluate((options) => globalThis.axe.run(document, options), options);
  const found = violations.map(
    ({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).join(' ')}`,
  );
  assert.deepEqual(found, [], what);
}

// Asserts that a page is no wider than the window, from telephones to large screens.
export async function assertFits(page, what, widths = [320, 390, 768, 1280, 1600]) {
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    const { overflow, widest } = await page.evaluate(() => {
      const overflow = document.documentElement.scrollWidth - innerWidth;
      const isOut = (one) => one.getBoundingClientRect().right > innerWidth && !one.closest('.scroll');
      const widest = overflow > 0 ? [...document.querySelectorAll('main *')].filter(isOut).slice(0, 5) : [];
      return { overflow, widest: widest.map((one) => one.outerHTML.slice(0, 120)) };
    });
    assert.ok(overflow <= 0, `${what} is ${overflow} pixels wider than ${width}: ${widest.join('\n')}`);
  }
}

// Looks at the page that a change led to as at every other: light and wide, dark and narrow.
export async function look(page, name) {
  for (const [colorScheme, width] of [['light', 1280], ['dark', 390]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    await picture(page, `${name}-${colorScheme}-${width}`);
    await assertAccessible(page, `${name} ${colorScheme}`);
  }
  await assertFits(page, name, [320]);
  await page.emulateMedia({ colorScheme: null });
  await page.setViewportSize({ width: 1280, height: 900 });
}

// Loads a page until it shows a text, or no longer does: another instance learns of a change in its time.
export async function shows(page, url, text, isShown = true) {
  await eventually(`${url}: ${text}`, async () => {
    await page.goto(url);
    const shown = await page.locator('main').innerText();
    return shown.includes(text) === isShown || shown;
  });
}

// Moves the time by one step, and waits until pages that keep themselves up to date show it: an instance
// that slept through steps would miss what the others have counted.
export async function advance(pages) {
  const asOf = (page) =>
    page.locator('main time').first().getAttribute('datetime', { timeout: 500 }).catch(() => '');
  const before = await Promise.all(pages.map(asOf));
  await ask('advance');
  for (const [number, page] of pages.entries()) {
    await eventually('the step has ended', async () => (await asOf(page)) !== before[number]);
  }
}

// Waits until a condition is met.
export async function eventually(what, condition, timeout = 20_000) {
  const end = Date.now() + timeout;
  let last;
  while (Date.now() < end) {
    last = await condition();
    if (last === true) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(`not in time: ${what}: ${JSON.stringify(last)}`);
}
