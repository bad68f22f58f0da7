#!/usr/bin/env bash
# Checks, tests and builds the package. RLAAS_CASES and RLAAS_SERVER are the servers of test/servers.ts, without
# which most tests are skipped; RLAAS_TABLE is cases.yaml, if it is not beside this folder.
set -euo pipefail
cd "$(dirname "$0")"
export npm_config_cache="$PWD/.cache/npm" npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false

mkdir -p .cache
npm ci --silent
if [ -d ../../proto ]; then
  node generate.js .cache/descriptor.ts
  diff .cache/descriptor.ts src/descriptor.ts
fi
npx prettier --check --log-level warn .
npm run --silent build
npx tsc -p test
node --test --test-reporter=spec .cache/test/*.test.js

# The packed package in an empty folder, from ESM and CommonJS, and the types of the examples.
rm -rf .cache/empty
mkdir -p .cache/empty
npm pack --silent --pack-destination .cache/empty
cp -r examples .cache/empty
pushd .cache/empty > /dev/null
echo '{ "type": "module" }' > package.json
version() { node -p "require('../../package.json').devDependencies['$1']"; }
npm install --silent ./rlaas-client-*.tgz "express@$(version express)" "fastify@$(version fastify)" \
  "@types/express@$(version @types/express)" "@types/node@$(version @types/node)"
../../node_modules/.bin/tsc --ignoreConfig --noEmit --allowJs --checkJs --strict --module nodenext --types node examples/*.js
popd > /dev/null
node --test --test-reporter=spec .cache/test/packed.js
