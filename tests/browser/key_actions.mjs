// Changes of a key, and of the mode of a rule.

import assert from 'node:assert/strict';
import { api, consoleUrl, eventually, shows } from './helpers.mjs';

const RULE = 'rule?name=trial';
const user = ({ tag }) => `kim-${tag}`;
const keyPath = (way) => `key?user_id=${user(way)}&resource=%2Fpay&rule=pay`;

async function pay(way, number) {
  return (await api('POST', '/v1/check', { userId: user(way), resource: '/pay' }, number)).status;
}

// Sends a form of the key, and returns what the page then says.
async function changeKey(page, way, title, fields, clicks = 1) {
  await page.goto(consoleUrl() + keyPath(way));
  const summary = page.locator('summary', { hasText: new RegExp(`^${title}$`) });
  await summary.click();
  const form = page.locator('details[open]', { has: summary });
  const reason = `${title} by ${way.tag}`;
  for (const [label, value] of Object.entries({ ...fields, 'Why, for the audit (needed)': reason })) {
    await form.getByLabel(label, { exact: true }).fill(value);
  }
  await form.getByRole('button').first().click({ clickCount: clicks });
  await page.locator('p.done').waitFor();
  return page.locator('p.done').innerText();
}

const seenBeside = (way, text, isShown) => shows(way.other, consoleUrl(1) + keyPath(way), text, isShown);

export const KEY_ACTIONS = [
  {
    name: 'reset a key',
    async act(page, way) {
      for (let number = 0; number < 3; number += 1) assert.equal(await pay(way, number % 2), 200);
      await seenBeside(way, '3 of 5 used');
      assert.match(await changeKey(page, way, 'Reset', {}), /is reset: 3 → 0 used/);
      await seenBeside(way, '0 of 5 used');
    },
  },
  {
    name: 'refund units, by a double click',
    async act(page, way) {
      await pay(way, 1);
      await pay(way, 1);
      await changeKey(page, way, 'Refund', { Units: '1' }, 2);
      await seenBeside(way, '1 of 5 used');
      await way.other.goto(`${consoleUrl(1)}audit?rule=pay`);
      const reason = way.other.locator('td', { hasText: `Refund by ${way.tag}` });
      assert.equal(await reason.count(), 1, 'made once');
    },
  },
  {
    name: 'ban a key, and end the ban',
    async act(page, way) {
      assert.match(await changeKey(page, way, 'Ban', { 'Another time, instead': '2h' }), /is banned until/);
      await eventually('the other instance refuses', async () => (await pay(way, 1)) === 429);
      await seenBeside(way, 'from a ban of this key');
      await page.goto(`${consoleUrl()}key?user_id=${user(way)}`);
      const answer = page.locator('p.summary', { hasText: 'is banned on' });
      await answer.waitFor();
      assert.equal(await answer.locator('time').count(), way.hasScripts ? 1 : 0, 'a time of the reader');
      assert.match(await changeKey(page, way, 'End the ban', {}), /not banned any more/);
      await eventually('the other instance allows', async () => (await pay(way, 1)) === 200);
      await seenBeside(way, 'from a ban of this key', false);
    },
  },
  {
    name: 'ban a key on all rules, and end that among the exceptions',
    async act(page, way) {
      assert.match(await changeKey(page, way, 'Ban on all rules of the project', {}), /is banned on .*pay/);
      await eventually('the other instance refuses', async () => (await pay(way, 1)) === 429);
      await page.goto(`${consoleUrl()}exceptions`);
      const row = page.locator('tr', { hasText: user(way) });
      if (way.hasScripts) await way.look(page, 'exceptions-banned');
      await row.getByRole('button', { name: /^End/ }).click();
      await page.locator('p.done', { hasText: 'ended' }).waitFor();
      await eventually('the other instance allows', async () => (await pay(way, 1)) === 200);
    },
  },
  {
    name: 'set another limit, and end it',
    async act(page, way) {
      const fields = { 'Limit, or "unlimited"': '500', 'Another time, instead': '7d' };
      assert.match(await changeKey(page, way, 'Raise the limit', fields), /has another limit until .*: 5 → 500/);
      await seenBeside(way, '500 per 1 h');
      assert.match(await changeKey(page, way, 'End the other limit', {}), /has the limit of the rule again/);
      await seenBeside(way, 'set for this key', false);
    },
  },
  {
    name: 'a field that is not valid keeps what was typed',
    async act(page, way) {
      await page.goto(consoleUrl() + keyPath(way));
      await page.locator('summary', { hasText: /^Ban$/ }).click();
      const form = page.locator('details[open]');
      await form.getByLabel('Another time').fill('tomorrow');
      await form.getByLabel('Why').fill('typed');
      await form.getByRole('button').click();
      await page.locator('p.problem', { hasText: 'Another time must be' }).waitFor();
      const field = page.locator('details[open] .field', { hasText: 'Another time must be' });
      assert.equal(await field.locator('input').getAttribute('aria-invalid'), 'true', 'beside the field');
      assert.equal(await page.locator('details[open]').getByLabel('Why').inputValue(), 'typed');
      if (!way.hasScripts) return;
      const why = await page.locator('form p.problem').boundingBox();
      const { height } = page.viewportSize();
      assert.ok(why.y >= 0 && why.y + why.height <= height, `it is seen: ${why.y} of ${height}`);
      await way.look(page, 'key-refused');
    },
  },
  {
    name: 'set the mode of a rule, and end it',
    async act(page, way) {
      await page.goto(consoleUrl() + RULE);
      await page.locator('summary', { hasText: 'Set another mode' }).click();
      await page.locator('#set-mode-mode').selectOption('off');
      await page.locator('#set-mode-ttl').fill('30m');
      await page.locator('#set-mode-reason').fill(`by ${way.tag}`);
      await page.getByRole('button', { name: 'Set the mode' }).click();
      await page.locator('p.done', { hasText: 'The mode of rule trial is off until' }).waitFor();
      await shows(way.other, consoleUrl(1) + RULE, 'set until');
      if (way.hasScripts) await way.look(page, 'rule-off');
      await page.locator('summary', { hasText: 'End the mode' }).click();
      await page.locator('#end-mode-reason').fill('over');
      await page.getByRole('button', { name: 'End it now' }).click();
      await page.locator('p.done', { hasText: 'that of its configuration again' }).waitFor();
      await shows(way.other, consoleUrl(1) + RULE, 'set until', false);
    },
  },
  {
    name: 'try a request',
    async act(page) {
      for (const [resource, says] of [['/pay', 'would be'], ['/other', 'Rules that it does not meet']]) {
        await page.goto(`${consoleUrl()}rule?name=pay`);
        await page.getByRole('link', { name: 'Try a request' }).click();
        await page.getByLabel('User id').fill('nobody-has-this-id');
        await page.getByLabel('Resource').fill(resource);
        await page.getByRole('button', { name: 'Look up' }).click();
        await page.getByText(says).waitFor();
      }
    },
  },
];
