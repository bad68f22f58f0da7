// The pages of the console, which every check walks through. A new page is a new entry:
//   name      of its pictures
//   path      below /console/, with a query that shows something
//   prepare   leads from the page at this path to the one that is meant
//   hostile   texts of `data.mjs` that it must show
//   book      height of its picture in the book
//   variant   whether it is a page of the list with other data, which some checks leave out
//   stranger  whether it is for those who have not signed in
//   reflects  fields of its query that it shows again, whatever they are
//   operate   status for a visitor with this role; 200 if it is left out
//   shop      status for a visitor with this role for the project `shop` alone

import { CHANGE_ACTIONS } from './change_actions.mjs';
import { HOSTILE, LONG_PROJECT } from './data.mjs';
import { KEY_ACTIONS } from './key_actions.mjs';
import { DELETION, PROJECT_ACTIONS } from './project_actions.mjs';

const TEXTS = [HOSTILE[0], HOSTILE[1], 'U+202E', 'U+0000'];
const REQUEST = ['project', 'user_id', 'resource', 'attributes'];
const ALICE = 'user_id=alice&resource=%2Fpay';
const STRANGER = new URLSearchParams({ user_id: HOSTILE[0], resource: '/pay' });
const LONGEST = new URLSearchParams({ user_id: HOSTILE[3], resource: '/pay' });

export const PAGES = [
  { name: 'now', path: 'now', book: 800 },
  { name: 'instances', path: 'instances', shop: 403 },
  { name: 'rules', path: 'rules', reflects: ['name', 'project'] },
  { name: 'rule', path: `rule?name=pay&${ALICE}`, book: 1000, shop: 404, reflects: [...REQUEST, 'name'] },
  { name: 'rule-hostile', variant: true, path: 'rule?project=tenant-0&name=strange', hostile: TEXTS.slice(0, 2), shop: 404 },
  { name: 'key-search', variant: true, path: 'key' },
  { name: 'key', path: `key?${ALICE}`, book: 720, reflects: [...REQUEST, 'rule', 'id'] },
  { name: 'key-hostile', variant: true, path: `key?${STRANGER}`, hostile: TEXTS.slice(0, 1) },
  { name: 'key-longest', variant: true, path: `key?${LONGEST}`, hostile: ['U+0000'] },
  { name: 'key-of-project', variant: true, path: 'key?project=shop&user_id=alice' },
  { name: 'exceptions', path: 'exceptions', operate: 403, shop: 403, reflects: ['project', 'kind', 'page'] },
  { name: 'projects', path: 'projects', hostile: TEXTS.slice(0, 3), reflects: ['q', 'page'] },
  { name: 'project', path: 'project?id=shop', book: 760, reflects: ['id'] },
  { name: 'project-hostile', variant: true, path: 'project?id=tenant-0', hostile: TEXTS.slice(0, 2), shop: 404 },
  { name: 'project-longest', variant: true, path: `project?id=${LONG_PROJECT}`, shop: 404 },
  { name: 'project-unnamed', variant: true, path: 'project?id=_', shop: 404 },
  { name: 'change', path: 'change?project=shop', book: 1060, prepare: plan, reflects: ['project'] },
  { name: 'change-hostile', variant: true, path: 'change?project=tenant-0', shop: 404 },
  { name: 'change-empty', variant: true, path: `change?project=${LONG_PROJECT}`, shop: 404 },
  { name: 'change-problems', variant: true, path: 'change?project=shop', prepare: (page) => plan(page, 'rules:\n- {name: a b, limit: -1}\n') },
  { name: 'history', path: 'history?project=shop', hostile: [TEXTS[0], TEXTS[2]], reflects: ['project', 'revision', 'base'] },
  { name: 'revision', path: 'history?project=shop&revision=4&base=2' },
  { name: 'audit', path: 'audit?project=_', book: 540, hostile: TEXTS, operate: 403, shop: 403, reflects: ['actor', 'rule', 'project', 'from'] },
  { name: 'audit-all', variant: true, path: 'audit', operate: 403, shop: 403 },
  { name: 'sign-in', path: 'sign-in', stranger: true, reflects: ['next'] },
];

// Looks at the plan of another text.
async function plan(page, text) {
  const rules = page.locator('#rules');
  await rules.fill(text ?? (await rules.inputValue()).replace('limit: 3', 'limit: 2'));
  await page.getByRole('button', { name: 'Validate' }).click();
  await page.waitForURL(/change-check/);
}

// Changes that a browser with scripts makes, and one without. An action takes the page and the way it is
// made: `tag` for names, `hasScripts`, and `other`, a page of the other instance. With a path it begins
// there, and the page then says something.
export const ACTIONS = [
  {
    name: 'search the audit',
    path: 'audit',
    async act(page) {
      await page.getByLabel('Who').fill('nobody-has-this-name');
      await page.locator('main form button').first().click();
    },
    says: 'No change fits.',
  },
  ...KEY_ACTIONS,
  ...PROJECT_ACTIONS,
  ...CHANGE_ACTIONS,
  ...DELETION,
];
