// Rules of a project: typed, tried, published, changed by two people at once, and rolled back.

import assert from 'node:assert/strict';
import { api, consoleUrl, eventually } from './helpers.mjs';
import { projectOf } from './project_actions.mjs';

const rules = (limit) => `rules:\n- name: pay\n  limit: ${limit}\n  window: 1h\n`;
const open = (page, way) => page.goto(`${consoleUrl()}change?project=${projectOf(way)}`);

// Waits until the other instance has the rule like this.
async function ruleBeside(way, isMeant) {
  await eventually('the rule of the other instance', async () => {
    const { body } = await api('GET', `/v1/projects/${projectOf(way)}/rules`, undefined, 1);
    const found = (body?.rules ?? []).map(({ rule }) => rule);
    return isMeant(found[0]) || found;
  });
}

// Publishes, after a look at the plan, and returns what the page says.
async function publish(page, way) {
  await page.getByRole('button', { name: 'Validate' }).click();
  await page.waitForURL(/change-check/);
  await page.getByText('Nothing was changed yet').waitFor();
  await page.locator('#reason').fill(`by ${way.tag}`);
  await page.getByRole('button', { name: 'Publish' }).click();
  await page.locator('p.done', { hasText: 'Published as revision' }).waitFor();
}

export const CHANGE_ACTIONS = [
  {
    name: 'validate rules, as they are typed or by the button',
    async act(page, way) {
      await open(page, way);
      const validate = async (text, says) => {
        await page.locator('#rules').fill(text);
        if (!way.hasScripts) await page.getByRole('button', { name: 'Validate' }).click();
        await page.locator('#result', { hasText: says }).waitFor();
        assert.equal(await page.locator('#rules').inputValue(), text);
      };
      await validate('rules:\n- name: pay\n  limit: -1\n  window: soon\n', 'nothing can be published');
      if (way.hasScripts) await way.look(page, 'change-typed');
      await validate(rules(10), 'The text is valid.');
      if (way.hasScripts) assert.match(page.url(), /change\?project/, 'the page was not left');
    },
  },
  {
    name: 'an edited text comes back, or is discarded',
    async act(page, way) {
      if (!way.hasScripts) return;
      await open(page, way);
      const discard = page.getByRole('button', { name: 'Discard it' });
      // That of the step before.
      await discard.click();
      await discard.waitFor({ state: 'detached' });
      const before = await page.locator('#rules').inputValue();
      await page.locator('#rules').fill(rules(77));
      await open(page, way);
      assert.equal(await page.locator('#rules').inputValue(), rules(77));
      await page.locator('#result', { hasText: 'The text is valid.' }).waitFor();
      await discard.click();
      await discard.waitFor({ state: 'detached' });
      assert.equal(await page.locator('#rules').inputValue(), before);
    },
  },
  {
    name: 'publish in shadow, then for all',
    async act(page, way) {
      await open(page, way);
      // Nobody has seen a plan.
      assert.equal(await page.getByRole('button', { name: 'Publish' }).isVisible(), false);
      await page.locator('#rules').fill(`${rules(10)}  enforce: 0%\n`);
      await publish(page, way);
      await ruleBeside(way, (rule) => rule?.enforcePpm === 0);
      await page.locator('#rules').fill(rules(10));
      await publish(page, way);
      await ruleBeside(way, (rule) => rule && [undefined, 1_000_000].includes(rule.enforcePpm));
    },
  },
  {
    name: 'two people change the rules at once',
    async act(page, way) {
      const second = await page.context().newPage();
      await open(page, way);
      await open(second, way);
      await page.locator('#rules').fill(rules(20));
      await publish(page, way);
      await second.locator('#rules').fill(rules(30));
      await second.getByRole('button', { name: 'Validate' }).click();
      await second.waitForURL(/change-check/);
      const [response] = await Promise.all([
        second.waitForResponse((response) => response.url().endsWith('/change-publish')),
        second.getByRole('button', { name: 'Publish' }).click(),
      ]);
      assert.equal(response.status(), 409);
      await second.getByText('Others have changed the project').waitFor();
      assert.equal(await second.locator('#rules').inputValue(), rules(30), 'the text stays');
      if (way.hasScripts) await way.look(second, 'change-stale');
      await ruleBeside(way, (rule) => rule?.maxRequests === '20');
      await second.getByRole('button', { name: 'Publish' }).click();
      await second.locator('p.done', { hasText: 'Published as revision' }).waitFor();
      await ruleBeside(way, (rule) => rule?.maxRequests === '30');
      await second.close();
    },
  },
  {
    name: 'roll back',
    async act(page, way) {
      await page.goto(`${consoleUrl()}history?project=${projectOf(way)}`);
      await page.locator('tbody a').last().click();
      await page.getByRole('link', { name: 'Compare with the one before' }).waitFor();
      await page.locator('#reason').fill('it was better before');
      await page.getByRole('button', { name: 'Roll back to' }).click();
      await page.locator('p.done', { hasText: 'are in force again' }).waitFor();
      await ruleBeside(way, (rule) => rule?.maxRequests === '10' && rule.enforcePpm === 0);
    },
  },
  {
    name: 'raise a rule by its form, and undo it',
    async act(page, way) {
      await page.goto(`${consoleUrl()}rule?project=${projectOf(way)}&name=pay`);
      await page.getByRole('link', { name: 'Change', exact: true }).click();
      await page.locator('#change-limit').fill('40');
      await page.locator('#change-reason').fill('more for all');
      if (way.hasScripts) {
        // What was typed comes back.
        await page.goto(`${consoleUrl()}rule?project=${projectOf(way)}&name=pay`);
        await page.getByText('Below is what you typed before').waitFor();
        assert.equal(await page.locator('#change-limit').inputValue(), '40');
      }
      if (way.hasScripts) await way.look(page, 'rule-form');
      await page.getByRole('button', { name: 'Save the rule' }).click();
      await page.locator('p.done', { hasText: 'was saved as revision' }).waitFor();
      await ruleBeside(way, (rule) => rule?.maxRequests === '40');
      assert.equal(await page.getByText('Below is what you typed before').count(), 0, 'it was saved');
      await page.getByRole('link', { name: 'Undo the last change' }).click();
      await page.getByRole('button', { name: 'Roll back to this revision' }).click();
      await page.locator('p.done', { hasText: 'are in force again' }).waitFor();
      await ruleBeside(way, (rule) => rule?.maxRequests === '10');
    },
  },
];
