// What the pages show: traffic, changes, and texts that a stranger chose.

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

// Decisions of each step; for the book more, so that its chart says something.
const STEPS = subject.book ? [3, 8, 14, 9, 20, 12] : [8, 14];

// Takes a page that keeps itself up to date, which says when a step has ended.
export async function makeData(page) {
  for (const [step, count] of STEPS.entries()) {
    for (let number = 0; number < count; number += 1) {
      await check(number % 3 ? 'alice' : `user-${number}`, number % 4 ? '/pay' : '/search', step % 2);
    }
    await advance([page]);
  }
  for (const userId of [...HOSTILE, 'alice']) {
    await check(userId, '/pay', 0);
    const selector = { request: { userId, resource: '/pay' } };
    const reason = userId === 'alice' ? 'ticket 4711: a retry loop of the shop' : userId.slice(0, 200);
    const { status, body } = await api('POST', '/v1/admin/keys:reset', { selector, reason });
    assert.equal(status, 200, JSON.stringify(body));
  }
  await advance([page]);
}

async function check(userId, resource, instance) {
  const { status } = await api('POST', '/v1/check', { userId, resource }, instance);
  assert.ok(status === 200 || status === 429, `${status}`);
}
