// A project, its name and its API keys.

import assert from 'node:assert/strict';
import { api, ask, consoleUrl, eventually, shows } from './helpers.mjs';

export const projectOf = ({ tag }) => `made-${tag}`;
const path = (way) => `project?id=${projectOf(way)}`;

// Waits until the other instance responds to requests with a key in this way. Times of changes may be
// ahead of the time that stands still for the test.
async function keyGets(secret, status) {
  await eventually(`${status} with the key`, async () => {
    await ask('advance');
    const response = await api('POST', '/v1/check', { userId: 'u', resource: '/pay' }, 1, secret);
    return response.status === status || response;
  });
}

// Returns the secret that the page shows, once.
async function shownOnce(page, way) {
  const secret = await page.locator('#api-key').inputValue();
  assert.match(secret, /^rlaas_/);
  assert.ok(!page.url().includes(secret));
  await page.reload();
  await page.getByText('was created by this form before').waitFor();
  assert.ok(!(await page.content()).includes(secret), 'the same form again');
  await page.goto(consoleUrl() + path(way));
  assert.ok(!(await page.content()).includes(secret), 'the page of the project');
  return secret;
}

// Opens the forms of the key that is active.
async function openKey(page) {
  const summary = page.locator('summary', { hasText: 'Revoke or replace' });
  await summary.click();
  return page.locator('details[open]', { has: summary });
}

export const PROJECT_ACTIONS = [
  {
    name: 'create a project',
    async act(page, way) {
      await page.goto(`${consoleUrl()}projects`);
      await page.locator('#new summary').click();
      for (const id of ['Not valid!', projectOf(way)]) {
        await page.locator('#new-id').fill(id);
        await page.locator('#new-name').fill('Made here');
        await page.locator('#new-reason').fill('by a browser');
        await page.getByRole('button', { name: 'Create project' }).click();
        if (id === projectOf(way)) continue;
        await page.locator('p.problem').waitFor();
        assert.equal(await page.locator('#new-id').inputValue(), id, 'what was typed stays');
        if (way.hasScripts) await way.look(page, 'projects-refused');
      }
      await page.locator('p.done', { hasText: 'was created' }).waitFor();
      await shows(way.other, consoleUrl(1) + path(way), 'Made here');
    },
  },
  {
    name: 'rename a project',
    async act(page, way) {
      await page.goto(consoleUrl() + path(way));
      await page.locator('#settings summary').click();
      await page.locator('#name').fill('Renamed & <b>bold</b>');
      await page.getByRole('button', { name: 'Save' }).click();
      await page.locator('p.done').waitFor();
      await shows(way.other, consoleUrl(1) + path(way), 'Renamed & <b>bold</b>');
    },
  },
  {
    name: 'create an API key, replace and revoke it',
    async act(page, way) {
      await page.goto(consoleUrl() + path(way));
      await page.locator('summary', { hasText: 'Create an API key' }).click();
      await page.locator('#key-name').fill('web');
      await page.getByRole('button', { name: 'Create API key' }).click();
      await page.locator('#api-key').waitFor();
      if (way.hasScripts) await way.look(page, 'secret');
      const first = await shownOnce(page, way);
      // The project has no rule, so it refuses; it would not know another key.
      await keyGets(first, 403);

      let form = await openKey(page);
      await form.locator('select').selectOption('0');
      await form.getByRole('button', { name: 'Replace' }).click();
      await page.getByText('It replaces the key').waitFor();
      const second = await shownOnce(page, way);
      assert.notEqual(second, first);
      await keyGets(second, 403);
      await keyGets(first, 401);

      // By hand where there are no scripts.
      await page.goto(`${consoleUrl()}now`);
      if (way.hasScripts) await page.keyboard.press('/');
      else await page.locator('#find').focus();
      await page.keyboard.insertText(second);
      await page.keyboard.press('Enter');
      await page.waitForURL(/key\?user_id=rlaas_/);
      assert.ok(!page.url().includes(second));
      await page.getByRole('link', { name: 'Revoke or replace it' }).click();
      form = page.locator('details[open]', { hasText: 'Revoke or replace' });
      await form.getByRole('button', { name: 'Revoke' }).click();
      await page.locator('p.done', { hasText: 'was revoked' }).waitFor();
      await keyGets(second, 401);
    },
  },
];

export const DELETION = [
  {
    name: 'delete a project',
    async act(page, way) {
      await page.goto(consoleUrl() + path(way));
      for (const id of ['another', projectOf(way)]) {
        if (id !== 'another') await page.locator('#settings[open]').waitFor();
        else await page.locator('#settings summary').click();
        await page.locator('#delete-confirm').fill(id);
        await page.getByRole('button', { name: 'Delete project' }).click();
        if (id === 'another') await page.getByText('was not deleted').waitFor();
      }
      await page.locator('p.done', { hasText: 'was deleted' }).waitFor();
      await eventually('the other instance has no such project', async () => {
        const { status } = await api('GET', `/v1/projects/${projectOf(way)}`, undefined, 1);
        return status === 404 || status;
      });
    },
  },
];
