// The pages of the console, which every check walks through. A new page is a new entry:
//   name      of its pictures
//   path      below /console/, with a query that shows something
//   hostile   whether it shows the hostile texts that `data.mjs` makes
//   book      height of its picture in the book
//   stranger  whether it is for those who have not signed in
//   reflects  fields of its query that it shows again, whatever they are
export const PAGES = [
  { name: 'now', path: 'now', book: 800 },
  { name: 'instances', path: 'instances' },
  { name: 'audit', path: 'audit', book: 600, hostile: true, reflects: ['actor', 'rule', 'project', 'from'] },
  { name: 'sign-in', path: 'sign-in', stranger: true, reflects: ['next'] },
];

// Changes that a browser without scripts makes, each by a form of a page, and what the page then says.
export const ACTIONS = [
  {
    name: 'search the audit',
    path: 'audit',
    async act(page) {
      await page.getByLabel('Rule').fill('nothing-has-this-name');
      await page.locator('main form button').first().click();
    },
    says: 'No change fits.',
  },
  {
    name: 'choose the last 24 hours',
    path: 'now',
    async act(page) {
      await page.locator('main a[href*="range=24h"]').first().click();
    },
    says: '24 hours',
  },
];
