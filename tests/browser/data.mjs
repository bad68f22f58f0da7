// What the pages show: traffic, changes, projects, and texts that a stranger chose.

import assert from 'node:assert/strict';
import { advance, api, subject } from './helpers.mjs';

const SCRIPT = '<script>globalThis.pwned = 1</script><img src=x onerror="globalThis.pwned = 1">';

// Ids: a script, one that turns the direction of the text, and the longest, with NUL.
export const HOSTILE = [
  SCRIPT,
  '"\'><svg onload=globalThis.pwned=1>',
  '\u202etxt.\u2066exe\u0000',
  'x'.repeat(1023) + '\u0000',
];

// The longest id of a project.
export const LONG_PROJECT = `p${'x'.repeat(62)}`;

// Decisions of each step; for the book more, so that its chart says something.
const STEPS = subject.book ? [3, 8, 14, 9, 20, 12] : [8, 14];

// Takes a page that keeps itself up to date, which says when a step has ended.
export async function makeData(page) {
  const shop = await makeProjects();
  for (const [step, count] of STEPS.entries()) {
    for (let number = 0; number < count; number += 1) {
      await check(number % 3 ? 'alice' : `user-${number}`, number % 4 ? '/pay' : '/search', step % 2);
      await check(`buyer-${number % 3}`, number % 2 ? '/login' : '/cart', step % 2, shop);
    }
    await advance([page]);
  }
  for (const userId of [...HOSTILE, 'alice']) {
    await check(userId, '/pay', 0);
    const selector = { request: { userId, resource: '/pay' } };
    const reason = userId === 'alice' ? 'ticket 4711: a retry loop of the shop' : userId.slice(0, 200);
    await done('POST', '/v1/admin/keys:reset', { selector, reason });
  }
  for (let number = 0; number < 6; number += 1) await check('alice', '/pay', number % 2);
  await advance([page]);
}

// Makes projects with names, rules, revisions and keys, and returns the secret of a key of the shop.
async function makeProjects() {
  await done('POST', '/v1/projects', { project: { id: 'shop', displayName: 'The shop' } });
  const rule = (name, maxRequests, anyOf) => ({ name, maxRequests, window: '60s', matchers: [{ part: 'resource', anyOf }] });
  const [login, cart] = [rule('login', 5, ['/login']), rule('cart', 40, ['/cart', '/basket'])];
  const revisions = [
    [[login], 'ticket 4700: the first rules'],
    [[login, cart], SCRIPT],
    [[{ ...login, maxRequests: 3 }, cart], HOSTILE[2]],
  ];
  for (const [rules, reason] of revisions) {
    await done('POST', '/v1/projects/shop/rules:apply', { rules, prune: true, reason });
  }
  const hostile = HOSTILE.map((text) => text.slice(0, 100));
  for (const [number, displayName] of [...hostile, ''].entries()) {
    const id = number === hostile.length ? LONG_PROJECT : `tenant-${number}`;
    await done('POST', '/v1/projects', { project: { id, displayName } });
  }
  const strange = { rules: [rule('strange', 9, HOSTILE.slice(0, 2))], reason: SCRIPT };
  await done('POST', '/v1/projects/tenant-0/rules:apply', strange);
  for (const displayName of hostile.slice(0, 2)) {
    await done('POST', '/v1/projects/tenant-0/keys', { key: { displayName } });
  }
  await done('POST', '/v1/projects/shop/keys', { key: { displayName: 'tests', environment: 'test' } });
  return (await done('POST', '/v1/projects/shop/keys', { key: { displayName: 'web' } })).secret;
}

async function done(method, path, body) {
  const response = await api(method, path, body);
  assert.ok(response.status === 200 || response.status === 201, `${path}: ${JSON.stringify(response)}`);
  return response.body;
}

async function check(userId, resource, instance, key) {
  const answered = async () => (await api('POST', '/v1/check', { userId, resource }, instance, key)).status;
  // An instance that does not know a new key yet refuses it for a moment.
  for (let attempt = 0; ; attempt += 1) {
    const status = await answered();
    if (status === 200 || status === 429) return;
    assert.ok(key && status === 401 && attempt < 100, `${status}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
