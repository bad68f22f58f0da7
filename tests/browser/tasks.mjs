// Tasks of somebody on call, each from the page Now: at most 4 clicks, and at most 2 fields typed.
//
// A click is one on a link, a button or something folded; a choice from a list is two. A reason is a field.

import assert from 'node:assert/strict';
import { advance, api, ask, consoleUrl, eventually, run, visitor } from './helpers.mjs';

const MAX_CLICKS = 4;
const MAX_FIELDS = 2;

let page;
let secret;
// What the person of a task has done.
let [clicks, fields] = [0, 0];

async function click(target) {
  clicks += 1;
  await target.click();
}

async function type(field, text) {
  fields += 1;
  await field.fill(text);
}

const link = (name) => click(page.getByRole('link', { name }).first());
const button = (name) => click(page.locator('main').getByRole('button', { name, exact: true }).filter({ visible: true }).first());
const reads = (text) => page.locator('main').getByText(text).first().waitFor();

// Opens the form of a change, and types the reason.
async function open(title, reason) {
  const summary = page.locator('summary', { hasText: title }).first();
  await click(summary);
  const form = page.locator('details[open]', { has: summary });
  await type(form.getByLabel('Why'), reason);
  return form;
}

async function search(text) {
  await type(page.locator('#find'), text);
  const before = page.url();
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.href !== before);
}

async function check(userId, resource, more = {}, key = undefined) {
  return (await api('POST', '/v1/check', { userId, resource, ...more }, 0, key)).status;
}

async function done(method, path, body) {
  const { status, body: answer } = await api(method, path, body);
  assert.ok(status === 200 || status === 201, `${path}: ${status} ${JSON.stringify(answer)}`);
  return answer;
}

async function makeData() {
  const matchers = [{ part: 'resource', anyOf: ['/login'] }];
  const apply = (maxRequests, reason) => {
    const rules = [{ name: 'login', maxRequests, window: '3600s', matchers }];
    return done('POST', '/v1/projects/shop/rules:apply', { rules, prune: true, reason });
  };
  await done('POST', '/v1/projects', { project: { id: 'shop' } });
  secret = (await done('POST', '/v1/projects/shop/keys', {})).secret;
  await apply(50, 'the first rules');
  await apply(5, 'stricter from today');
  for (const [user, resource, times] of [['alice', '/pay', 9], ['bob', '/pay', 3], ['mallory', '/pay', 30], ['mallory', '/search', 30]]) {
    for (let time = 0; time < times; time += 1) await check(user, resource);
  }
  for (let time = 0; time < 22; time += 1) await check('u', '/report', { attributes: { customer: 'acme' } });
}

// Each asserts that it is done.
const TASKS = {
  async 'let a customer through who is refused now'() {
    assert.equal(await check('alice', '/pay'), 429);
    await link('alice');
    await open('Raise the limit', 'ticket 4711');
    await button('× 10');
    await reads('has another limit until');
    assert.equal(await check('alice', '/pay'), 200);
  },

  async 'raise a limit for a day'() {
    await search('bob');
    const form = await open('Raise the limit', 'ticket 4712');
    clicks += 2;
    await form.getByLabel('Ends after').selectOption('1d');
    await button('× 2');
    await reads(/has another limit until .*: 5 → 10/);
  },

  async 'ban the user of a flood on all rules'() {
    await link('mallory');
    await open('Ban on all rules of the project', 'a flood');
    await button('Ban on all rules');
    await reads(/is banned on (pay, search|search, pay)/);
    await eventually('it is refused', async () => (await check('mallory', '/search')) === 429);
  },

  async 'roll the rules of a project back'() {
    await search('shop');
    await link('Undo the last change');
    await button('Roll back to this revision');
    await reads('are in force again');
    const { rules } = await done('GET', '/v1/projects/shop/rules');
    assert.equal(rules[0].rule.maxRequests, '50');
  },

  async 'revoke a leaked API key'() {
    await search(`RLAAS_API_KEY="${secret}"`);
    await link('Revoke or replace it');
    await button('Revoke now');
    await reads('was revoked');
    await eventually('it is refused', async () => (await check('u', '/login', {}, secret)) === 401);
  },

  async 'see who used up the month, and when it resets'() {
    await search('quota');
    const row = page.locator('tr', { hasText: 'acme' }).first();
    await row.getByText('20 of 20 used').waitFor();
    const now = new Date();
    const end = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1));
    const month = end.toLocaleString('en-US', { month: 'short', timeZone: 'UTC' });
    const year = end.getUTCMonth() === 0 ? ` ${end.getUTCFullYear()}` : '';
    // The last hour of a month is a wait.
    const wait = end - now < 3_660_000 ? '|in \\d+' : '';
    assert.match(await row.innerText(), new RegExp(`100 %.*(1 ${month}${year}, 00:00 UTC${wait})`, 's'));
  },

  async 'see what changed before the alarm'() {
    await link('Audit');
    await link('hour');
    const row = page.locator('tr', { hasText: 'stricter from today' }).first();
    assert.match(await row.innerText(), /shop/);
  },

  async 'see whether Redis is sick, and whom it hits'() {
    await ask('kill-redis');
    await reads('The store does not answer');
    for (let time = 0; time < 4; time += 1) assert.equal(await check('carol', '/pay'), 200);
    await advance([page]);
    const tile = page.locator('.tile', { hasText: 'Let through (fail-open)' });
    await tile.getByText(/^1 of 2 instances; 4 in/).waitFor();
    await page.locator('tr', { hasText: 'pay' }).locator('.bad', { hasText: '4' }).waitFor();
    await link('see them');
    await reads(/rules? lets? all pass/);
    await reads(/and still.*: \d+ failed, \d+ let through/);
  },
};

const counted = (name, act) => async (browser) => {
  page = await (await visitor(browser)).newPage();
  await page.goto(`${consoleUrl()}now`);
  await page.locator('p.live.good').waitFor();
  if (!secret) {
    await makeData();
    await advance([page]);
  }
  [clicks, fields] = [0, 0];
  await act();
  console.log(`${name}: ${clicks} clicks, ${fields} fields`);
  assert.ok(clicks <= MAX_CLICKS && fields <= MAX_FIELDS, name);
};

await run(Object.fromEntries(Object.entries(TASKS).map(([name, act]) => [name, counted(name, act)])));
