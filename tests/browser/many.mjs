// Many rules and projects: every page stays light, and what lies far back is found and changed.

import assert from 'node:assert/strict';
import {
  api,
  assertAccessible,
  assertFits,
  assertLight,
  consoleUrl,
  eventually,
  run,
  subject,
  visitor,
} from './helpers.mjs';

const { projects, rules_of_one: rulesOfOne, rules_of_file: rulesOfFile } = subject;
const projectOf = (number) => `project-${String(number).padStart(4, '0')}`;
const ruleOf = (number, rule) => `of-${String(number).padStart(4, '0')}-${rule}`;
const LAST = projects - 1;
const LAST_OF_FILE = `file-${String(rulesOfFile - 1).padStart(4, '0')}`;
// With the default rule.
const RULES = projects * rulesOfOne + rulesOfFile + 1;
const ALL_RULES = { rules: RULES, perPage: 100 };
// With that of requests without an API key.
const ALL_PROJECTS = { projects: projects + 1, perPage: 50 };
const lastPage = (count, perPage) => Math.ceil(count / perPage);

const PAGES = [
  ['instances', 'instances'],
  ['rules', 'rules'],
  ['rules-last', `rules?page=${lastPage(ALL_RULES.rules, ALL_RULES.perPage)}`],
  ['rules-of-one', `rules?project=${projectOf(LAST)}`],
  ['rule', `rule?project=${projectOf(LAST)}&name=${ruleOf(LAST, rulesOfOne - 1)}`],
  ['rule-of-file', `rule?name=${LAST_OF_FILE}&user_id=alice&resource=%2F1`],
  ['projects', 'projects'],
  ['projects-last', `projects?page=${lastPage(ALL_PROJECTS.projects, ALL_PROJECTS.perPage)}`],
  ['project', `project?id=${projectOf(0)}`],
  ['project-unnamed', 'project?id=_'],
  ['change', `change?project=${projectOf(LAST)}`],
  ['change-unnamed', 'change?project=_'],
  ['history', `history?project=${projectOf(LAST)}`],
  ['audit', 'audit'],
  ['key', 'key?user_id=alice&resource=%2F1'],
  // By then its first step has ended.
  ['now', 'now'],
];
// Those whose length grows, or is bounded.
const LISTS = ['now', 'rules', 'projects', 'audit', 'key', 'change-unnamed'];

async function makeProject(number) {
  const id = projectOf(number);
  const project = { id, displayName: `Shop number ${number} of many` };
  const rules = Array.from({ length: rulesOfOne }, (_, rule) => ({
    name: ruleOf(number, rule),
    maxRequests: rule + 1,
    window: '60s',
    matchers: [{ part: 'resource', anyOf: [`/${rule}`] }],
  }));
  for (const [path, body] of [['/v1/projects', { project }], [`/v1/projects/${id}/rules:apply`, { rules }]]) {
    const { status } = await api('POST', path, body);
    assert.ok(status === 200 || status === 201, `${path}: ${status}`);
  }
}

await run({
  'projects and rules are made, and decide': async () => {
    for (let first = 0; first < projects; first += 8) {
      const numbers = Array.from({ length: Math.min(8, projects - first) }, (_, beside) => first + beside);
      await Promise.all(numbers.map(makeProject));
    }
    for (let rule = 0; rule < rulesOfFile; rule += Math.ceil(rulesOfFile / 100)) {
      const { status } = await api('POST', '/v1/check', { userId: 'alice', resource: `/${rule}` });
      assert.equal(status, 200);
    }
  },

  'every page stays light, and fits a telephone in both themes': async (browser) => {
    const page = await (await visitor(browser)).newPage();
    for (const [name, path] of PAGES) {
      await page.setViewportSize({ width: 1280, height: 900 });
      await assertLight(page, name, async () => {
        const response = await page.goto(consoleUrl() + path);
        assert.equal(response.status(), 200, path);
      });
      if (path === 'now') await page.locator('tbody th', { hasText: 'file-' }).first().waitFor();
      for (const [colorScheme, width] of [['light', 1280], ['dark', 390]]) {
        await page.emulateMedia({ colorScheme });
        await assertFits(page, `${name} ${colorScheme}`, [390, width]);
        if (LISTS.includes(name)) await assertAccessible(page, `${name} ${colorScheme} ${width}`);
      }
    }
  },

  'a rule far back is found by its name, and by paging': async (browser) => {
    const page = await (await visitor(browser)).newPage();
    await page.goto(`${consoleUrl()}rules`);
    await page.getByRole('link', { name: 'Next rules' }).click();
    await page.waitForURL(/page=2/);
    await page.locator('.as-of', { hasText: '101 to 200 of' }).waitFor();
    const wanted = ruleOf(LAST, rulesOfOne - 1);
    await page.getByLabel('Part of the name').fill(wanted.toUpperCase());
    // It is found while its name is typed, and by the button.
    await page.locator('.as-of', { hasText: '1 to 1 of 1 rule' }).waitFor();
    assert.ok(page.url().endsWith(`rules?name=${wanted.toUpperCase()}`), page.url());
    await page.getByRole('button', { name: 'Show' }).click();
    await page.locator('.as-of', { hasText: '1 to 1 of 1 rule' }).waitFor();
    await page.getByRole('link', { name: wanted }).click();
    await page.waitForURL(/rule\?/);
    await page.locator('h1', { hasText: wanted }).waitFor();
  },

  'a project far back is found, and its rules are changed': async (browser) => {
    const page = await (await visitor(browser)).newPage();
    await page.goto(`${consoleUrl()}projects`);
    await page.getByRole('link', { name: 'Older projects' }).click();
    await page.locator('.summary', { hasText: 'page 2 of' }).waitFor();
    await page.getByLabel('Id or name').fill('shop number 7 of');
    await page.getByRole('button', { name: 'Search' }).click();
    await page.locator('.summary', { hasText: /^1 project/ }).waitFor();
    await page.getByRole('link', { name: projectOf(7) }).click();
    await page.getByRole('link', { name: 'edit all as YAML' }).click();
    const rules = page.locator('#rules');
    await rules.fill((await rules.inputValue()).replace('limit: 3', 'limit: 30'));
    await page.getByRole('button', { name: 'Validate' }).click();
    await page.waitForURL(/change-check/);
    await page.locator('#reason').fill('one of many');
    await page.getByRole('button', { name: 'Publish' }).click();
    await page.locator('p.done', { hasText: '1 rule changed' }).waitFor();
    await eventually('the rule is in force', async () => {
      const { body } = await api('GET', `/v1/projects/${projectOf(7)}/rules`);
      const limits = body.rules.map(({ rule }) => rule.maxRequests);
      return limits.includes('30') || limits;
    });
  },
});
