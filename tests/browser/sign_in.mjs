// Signing in at an issuer on another site, with the console below a path of a proxy.

import assert from 'node:assert/strict';
import { assertAccessible, picture, run, stranger, subject } from './helpers.mjs';

const AT = `${subject.proxy}/limits/console/`;

// Signs in at the issuer, from a page of the console.
async function signIn(page, account) {
  await page.getByRole('link', { name: 'Sign in with' }).click();
  await page.waitForURL(`${subject.issuer}/interaction/*`);
  await page.getByRole('button', { name: account }).click();
}

await run({
  'a visitor signs in at the issuer and sees the page they wanted': async (browser) => {
    const context = await stranger(browser);
    const page = await context.newPage();
    await page.goto(`${AT}audit?rule=a%20b`);
    await assertAccessible(page, 'sign-in');
    await picture(page, 'sign-in-issuer-light-1280');
    await page.getByRole('link', { name: 'Sign in with' }).click();
    await page.waitForURL(`${subject.issuer}/interaction/*`);
    const begun = (await context.cookies(AT)).find(({ name }) => name === 'rlaas-console-sign-in');
    assert.deepEqual([begun.httpOnly, begun.sameSite, begun.path], [true, 'Lax', '/limits/console']);
    const minutes = (begun.expires - Date.now() / 1000) / 60;
    assert.ok(minutes > 8 && minutes <= 10, `${minutes} minutes`);
    await page.getByRole('button', { name: 'alice' }).click();
    await page.waitForURL(`${AT}audit?rule=a%20b`);
    assert.match(await page.locator('.visitor').innerText(), /#alice/);
    assert.equal(await page.getByLabel('Rule').inputValue(), 'a b');
    const names = (await context.cookies(AT)).map(({ name, httpOnly }) => `${name} ${httpOnly}`);
    assert.deepEqual(names, ['rlaas-console true']);

    // Signed in at the issuer already, a visitor is asked nothing.
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.waitForURL(`${AT}sign-in`);
    await page.getByRole('link', { name: 'Sign in with' }).click();
    await page.waitForURL(`${AT}now`);
    await page.locator('p.live.good').waitFor();
  },

  'it works without scripts': async (browser) => {
    const page = await (await stranger(browser, { javaScriptEnabled: false })).newPage();
    await page.goto(`${AT}instances`);
    await signIn(page, 'alice');
    await page.waitForURL(`${AT}instances`);
    assert.match(await page.locator('.visitor').innerText(), /#alice/);
  },

  'those who are refused see why, and can try again': async (browser) => {
    const page = await (await stranger(browser)).newPage();
    await page.goto(`${AT}now`);
    await signIn(page, 'refuse');
    await page.getByText('access_denied: not <b>today</b>').waitFor();
    await assertAccessible(page, 'refused');
    await picture(page, 'sign-in-refused-light-1280');
    await signIn(page, 'guest');
    await page.getByText('The role operate or admin is required.').waitFor();
  },

  'a sign-in that another browser began does not end here': async (browser) => {
    const attacker = await (await stranger(browser)).newPage();
    await attacker.goto(`${AT}sign-in`);
    await attacker.getByRole('link', { name: 'Sign in with' }).click();
    await attacker.waitForURL(`${subject.issuer}/interaction/*`);
    // Without its cookie the console of this browser leaves the code as it is.
    await attacker.context().clearCookies({ name: 'rlaas-console-sign-in' });
    await attacker.getByRole('button', { name: 'alice' }).click();
    await attacker.waitForURL(/oidc-callback/);
    const callback = attacker.url();
    assert.match(callback, /[?&]code=/);
    const victim = await stranger(browser);
    const page = await victim.newPage();
    const response = await page.goto(callback);
    assert.equal(response.status(), 400);
    await page.getByText('this browser has not begun it').waitFor();
    assert.deepEqual((await victim.cookies(AT)).map(({ name }) => name), []);
  },
});
