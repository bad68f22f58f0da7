// Every change by the forms of the pages, with scripts and without.

import { ACTIONS } from './console_pages.mjs';
import { consoleUrl, look, run, subject, visitor } from './helpers.mjs';

// Makes every change by the forms of the pages, and looks at the other instance.
async function makeChanges(browser, options) {
  const hasScripts = options.javaScriptEnabled !== false;
  const page = await (await visitor(browser, options)).newPage();
  const other = await (await visitor(browser, { at: consoleUrl(1) })).newPage();
  const way = { tag: hasScripts ? 'scripts' : 'plain', hasScripts, other, look };
  for (const action of ACTIONS) {
    const began = Date.now();
    try {
      if (action.path) await page.goto(consoleUrl() + action.path);
      await action.act(page, way);
      if (action.says) await page.locator('main', { hasText: action.says }).waitFor();
    } catch (error) {
      await page.screenshot({ path: `${subject.pictures}/failed-${way.tag}.png`, fullPage: true });
      throw new Error(`${action.name}, ${page.url()}: ${await page.locator('main').innerText()}`, { cause: error });
    }
    console.log(`${way.tag}: ${action.name} (${Date.now() - began} ms)`);
  }
}

await run({
  'every change is made with scripts': (browser) => makeChanges(browser, {}),

  'every change is made without scripts': (browser) => makeChanges(browser, { javaScriptEnabled: false }),
});
