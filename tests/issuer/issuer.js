// An OpenID Connect issuer for tests: access tokens as JWTs, by client credentials, and ID tokens by the
// authorization code flow.
//
// Its argument is a JSON object:
//   host        in its name; 127.0.0.1 without
//   port        to listen on; 0 for any
//   keys        private keys as JWK; those that have only kid and alg are made here
//   clients     by id: the claims of its tokens
//   consoles    clients of the code flow, by id: redirect URIs. With an id public-… it has no secret
//   accounts    by id: the claims of their ID tokens. A page lets visitors choose one, or refuse
//   cert, key   PEM files, for https
// It prints its name (its URL) when it listens.

import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer as createHttp } from 'node:http';
import { createServer as createHttps } from 'node:https';
import Provider from 'oidc-provider';

const KINDS = {
  RS256: ['rsa', { modulusLength: 2048 }],
  ES256: ['ec', { namedCurve: 'P-256' }],
  EdDSA: ['ed25519', {}],
};

function made({ kid, alg }) {
  const { privateKey } = generateKeyPairSync(...KINDS[alg]);
  return { ...privateKey.export({ format: 'jwk' }), kid, alg };
}

// Shows the accounts, and signs in the one that was chosen.
async function interact(provider, request, response) {
  if (request.method === 'GET') {
    const choices = [...Object.keys(accounts), 'refuse'].map(
      (name) => `<button name="account" value="${name}">${name}</button>`,
    );
    response.setHeader('content-type', 'text/html; charset=utf-8');
    response.end(`<title>Issuer</title><form method="post">${choices.join(' ')}</form>`);
    return;
  }
  let body = '';
  for await (const part of request) body += part;
  const accountId = new URLSearchParams(body).get('account');
  const result =
    accountId === 'refuse'
      ? { error: 'access_denied', error_description: 'not <b>today</b>' }
      : { login: { accountId } };
  await provider.interactionFinished(request, response, result);
}

const { host = '127.0.0.1', port, keys, clients, consoles = {}, accounts = {}, cert, key } =
  JSON.parse(process.argv[2]);
const server = cert
  ? createHttps({ cert: readFileSync(cert), key: readFileSync(key) })
  : createHttp();

server.listen(port, '127.0.0.1', () => {
  const { port: bound } = server.address();
  const issuer = cert ? `https://localhost:${bound}` : `http://${host}:${bound}`;
  const provider = new Provider(issuer, {
    jwks: { keys: keys.map((jwk) => (jwk.kty ? jwk : made(jwk))) },
    clients: [
      ...Object.keys(clients).map((id) => ({
        client_id: id,
        client_secret: `secret-of-${id}`,
        grant_types: ['client_credentials'],
        redirect_uris: [],
        response_types: [],
      })),
      ...Object.entries(consoles).map(([id, redirects]) => ({
        client_id: id,
        redirect_uris: redirects,
        ...(id.startsWith('public-')
          ? { token_endpoint_auth_method: 'none' }
          : { client_secret: `secret of ${id}: 50 %+` }),
      })),
    ],
    claims: { openid: ['sub', ...new Set(Object.values(accounts).flatMap(Object.keys))] },
    conformIdTokenClaims: false,
    cookies: { keys: ['for tests'] },
    findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
    interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
    loadExistingGrant: async ({ oidc }) => {
      const grant = new oidc.provider.Grant({
        accountId: oidc.session.accountId,
        clientId: oidc.client.clientId,
      });
      grant.addOIDCScope('openid');
      await grant.save();
      return grant;
    },
    pkce: { required: () => true },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        // The name of a resource ends with the algorithm of its tokens: urn:AUDIENCE:ES256.
        getResourceServerInfo: (_context, resource) => ({
          scope: '',
          audience: resource.split(':')[1],
          accessTokenFormat: 'jwt',
          jwt: { sign: { alg: resource.split(':')[2] } },
        }),
      },
    },
    extraTokenClaims: (_context, token) => clients[token.clientId],
  });
  const others = provider.callback();
  server.on('request', (request, response) =>
    request.url.startsWith('/interaction/')
      ? interact(provider, request, response)
      : others(request, response),
  );
  console.log(issuer);
});
