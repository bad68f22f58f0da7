// Code planted in every page: none of it runs, and the browser reports each kind.

import assert from 'node:assert/strict';
import { consoleUrl, eventually, visitor } from './helpers.mjs';

// Another origin of the same site. Nothing listens: no request may get there.
const SAME_SITE = 'http://127.0.0.1:9/';

// Directives that the browser must report when code and the like is planted.
const DIRECTIVES = [
  'script-src-elem',
  'script-src-attr',
  'style-src-elem',
  'style-src-attr',
  'base-uri',
  'form-action',
  'object-src',
  'require-trusted-types-for',
];

export async function plantedCodeDoesNotRun(browser, pages) {
  const context = await visitor(browser);
  await context.addInitScript(() => {
    globalThis.violations = [];
    addEventListener('securitypolicyviolation', (event) => globalThis.violations.push(event.effectiveDirective));
  });
  // As if a page had shown a text without escaping it.
  const planted = `<script>globalThis.pwned = 'script'</script>
    <img src="missing" onerror="globalThis.pwned = 'handler'">
    <a id="link" href="javascript:globalThis.pwned = 'link'">link</a>
    <script src="${SAME_SITE}script.js"></script>
    <style>h1 { display: none }</style><p id="styled" style="color: rgb(1, 2, 3)">styled</p>
    <base href="${SAME_SITE}"><iframe srcdoc="<script>parent.pwned = 'frame'</script>"></iframe>
    <object data="${SAME_SITE}"></object>
    <form id="form" action="${SAME_SITE}stolen" method="post"><input name="a"></form>`;
  await context.route('**/console/*', async (route) => {
    if (route.request().resourceType() !== 'document') return route.continue();
    const response = await route.fetch({ maxRedirects: 0 });
    const body = (await response.text()).replace('</body>', `${planted}</body>`);
    return route.fulfill({ response, body });
  });
  const page = await context.newPage();
  for (const entry of pages.filter((entry) => !entry.stranger)) {
    await page.goto(consoleUrl() + entry.path);
    await entry.prepare?.(page);
    await page.evaluate(() => document.querySelector('#link').click());
    await page.evaluate(() => document.querySelector('#form').submit());
    const fromDom = await page.evaluate(() => {
      const tries = {
        element() {
          const script = document.createElement('script');
          script.append("globalThis.pwned = 'element'");
          document.body.append(script);
        },
        html: () => (document.body.innerHTML += '<img src=x onerror="globalThis.pwned = 1">'),
        attribute: () => document.body.setAttribute('onclick', "globalThis.pwned = 'attribute'"),
        text: () => setTimeout("globalThis.pwned = 'text'", 0),
        // By a timer, since the tool that runs this may evaluate texts itself.
        eval: () => setTimeout(() => (0, eval)("globalThis.pwned = 'eval'"), 0),
      };
      return Object.entries(tries).filter(([, attempt]) => {
        try {
          attempt();
        } catch {
          return true;
        }
        return false;
      }).map(([name]) => name);
    });
    await page.evaluate(() => document.querySelector('h1').click());
    const reported = () => page.evaluate(() => globalThis.violations);
    await eventually('reports', async () => {
      const violations = await reported();
      return DIRECTIVES.every((directive) => violations.includes(directive)) || violations;
    });
    const { pwned, violations, color, base } = await page.evaluate(() => ({
      pwned: globalThis.pwned,
      violations: [...new Set(globalThis.violations)].sort(),
      color: getComputedStyle(document.querySelector('#styled')).color,
      base: document.baseURI,
    }));
    assert.equal(pwned, undefined, entry.name);
    assert.notEqual(color, 'rgb(1, 2, 3)');
    assert.ok(base.startsWith(consoleUrl()) && page.url().startsWith(consoleUrl()), base);
    assert.ok(fromDom.includes('html'), `${fromDom}`);
    console.log(`${entry.name}: reported ${violations.join(' ')}; refused ${fromDom.join(' ')}`);
  }
}
