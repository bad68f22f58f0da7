// What a hostile page, text or visitor can't do.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { PAGES } from './console_pages.mjs';
import { ask, consoleUrl, eventually, run, signIn, stranger, subject, visitor } from './helpers.mjs';

// A page of somebody else: on another port of this host, which is the same site, and on another host.
let evilPage = '';
const evil = createServer((request, response) => {
  response.setHeader('content-type', 'text/html');
  response.end(request.url === '/' ? evilPage : '');
});
await new Promise((resolve) => evil.listen(0, '127.0.0.1', resolve));
const { port } = evil.address();
const SAME_SITE = `http://127.0.0.1:${port}/`;
const OTHER_SITE = `http://evil.example:${port}/`;

const cookieOf = async (context) =>
  (await context.cookies()).find((cookie) => cookie.name === 'rlaas-console');

const isSignedIn = async (context) => {
  const response = await context.request.get(`${consoleUrl()}instances`, { maxRedirects: 0 });
  return response.status() === 200;
};

await run(
  {
    'no page frames the console': async (browser) => {
      const context = await visitor(browser);
      for (const origin of [SAME_SITE, OTHER_SITE]) {
        evilPage = ['now', 'sign-in', 'instances'].map((path) => `<iframe src="${consoleUrl()}${path}"></iframe>`).join('');
        const page = await context.newPage();
        await page.goto(origin);
        await eventually('frames', async () => page.frames().length === 4);
        await page.waitForLoadState('load');
        for (const frame of page.frames().slice(1)) {
          await eventually('a refused frame', async () => frame.url().startsWith('chrome-error://') || frame.url());
          assert.equal(await frame.locator('text=rlaas').count(), 0);
        }
      }
    },

    'cookies are for the console and no script': async (browser) => {
      const context = await visitor(browser);
      const cookie = await cookieOf(context);
      const { httpOnly, sameSite, secure, path, domain } = cookie;
      assert.deepEqual(
        { httpOnly, sameSite, secure, path, domain },
        { httpOnly: true, sameSite: 'Lax', secure: false, path: '/console', domain: '127.0.0.1' },
      );
      const page = await context.newPage();
      await page.goto(`${consoleUrl()}now`);
      assert.equal(await page.evaluate(() => document.cookie), '');
      const overTls = await stranger(browser, { ignoreHTTPSErrors: true });
      await signIn(await overTls.newPage(), subject.tokens.admin, `https://${subject.tls}/console/`);
      const secured = await cookieOf(overTls);
      assert.deepEqual([secured.secure, secured.httpOnly, secured.sameSite], [true, true, 'Lax']);
    },

    'a planted session is not adopted': async (browser) => {
      const attacker = await visitor(browser);
      const { value } = await cookieOf(attacker);
      for (const planted of [value, 'known-to-somebody']) {
        const victim = await stranger(browser);
        await victim.addCookies([{ name: 'rlaas-console', value: planted, domain: '127.0.0.1', path: '/console' }]);
        const page = await victim.newPage();
        await signIn(page, subject.tokens.operate);
        const own = (await cookieOf(victim)).value;
        assert.notEqual(own, planted);
        assert.ok(await isSignedIn(victim));
        assert.ok(!(await isSignedIn(attacker)), 'the planted session has ended');
      }
    },

    'forms of other pages change nothing': async (browser) => {
      const context = await visitor(browser);
      const own = await context.newPage();
      await own.goto(`${consoleUrl()}instances`);
      // Even who knows the secret of the form needs a page of the console.
      const secret = await own.locator('input[name=secret]').first().inputValue();
      for (const origin of [SAME_SITE, OTHER_SITE]) {
        evilPage = `<form method="post" action="${consoleUrl()}sign-out"><input name="secret" value="${secret}"></form>`;
        const page = await context.newPage();
        await page.goto(origin);
        const [response] = await Promise.all([
          page.waitForResponse((response) => response.url().endsWith('/sign-out')),
          page.waitForURL('**/sign-out'),
          page.evaluate(() => document.forms[0].submit()),
        ]);
        assert.equal(response.status(), 403, origin);
        const sent = await page.goto(origin).then(() =>
          page.evaluate(
            async ([url, body]) => {
              const options = { method: 'POST', mode: 'no-cors', credentials: 'include', body: new URLSearchParams(body) };
              await fetch(url, options).catch(() => {});
              return fetch(url.replace('sign-out', 'now'), { credentials: 'include' }).then(
                () => 'read',
                () => 'refused',
              );
            },
            [`${consoleUrl()}sign-out`, { secret }],
          ),
        );
        assert.equal(sent, 'refused', 'another page reads nothing');
        assert.ok(await isSignedIn(context), origin);
      }
    },

    'a name that was rebound to this machine sees nothing': async (browser) => {
      const context = await stranger(browser);
      const page = await context.newPage();
      const localPort = subject.local.split(':')[1];
      const rebound = `http://evil.example:${localPort}/console/`;
      for (const path of ['now', 'instances', 'audit']) {
        const response = await page.goto(rebound + path);
        assert.equal(response.status(), 403, path);
        assert.ok((await page.locator('main').innerText()).includes('is required'));
      }
      // From its own page, so that the browser takes it for the same origin.
      const [status, opened] = await page.evaluate(async (url) => {
        const { status } = await fetch(url);
        const events = new EventSource(url);
        const opened = await new Promise((resolve) => {
          events.onopen = () => resolve('opened');
          events.onerror = () => resolve('refused');
        });
        events.close();
        return [status, opened];
      }, `${rebound}now-events`);
      assert.deepEqual([status, opened], [403, 'refused']);
      const local = await page.goto(`http://127.0.0.1:${localPort}/console/now`);
      assert.equal(local.status(), 200, 'a local visitor by a local name');
    },

    'no secret is left behind': async (browser) => {
      const context = await stranger(browser);
      const page = await context.newPage();
      const visited = [];
      page.on('framenavigated', (frame) => visited.push(frame.url()));
      await page.goto(`${consoleUrl()}sign-in`);
      await page.getByLabel('Token').fill('s3cret-that-nobody-knows');
      await page.locator('button[value=token]').click();
      await page.getByText('is not known').waitFor();
      let shown = await page.content();
      await signIn(page, subject.tokens.admin);
      const { value } = await cookieOf(context);
      for (const entry of PAGES) {
        await page.goto(consoleUrl() + entry.path);
        shown += await page.content();
        const kept = await page.evaluate(async () => [
          localStorage.length,
          sessionStorage.length,
          (await indexedDB.databases()).length,
          (await caches.keys()).length,
        ]);
        assert.deepEqual(kept, [0, 0, 0, 0], entry.name);
      }
      assert.ok(await page.evaluate(() => history.length) > PAGES.length);
      for (const secret of ['s3cret-that-nobody-knows', subject.tokens.admin, value]) {
        assert.ok(!shown.includes(secret), 'in a page');
        assert.ok(!visited.join(' ').includes(secret), 'in the history');
        assert.equal(await ask(`is-logged ${secret}`), 'no', 'in the log');
      }
    },
  },
  ['--host-resolver-rules=MAP evil.example 127.0.0.1'],
);
