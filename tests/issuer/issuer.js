// An OpenID Connect issuer for tests: access tokens as JWTs, by client credentials.
//
// Its argument is a JSON object:
//   port        to listen on; 0 for any
//   keys        private keys as JWK; those that have only kid and alg are made here
//   clients     by id: the claims of its tokens
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

const { port, keys, clients, cert, key } = JSON.parse(process.argv[2]);
const server = cert
  ? createHttps({ cert: readFileSync(cert), key: readFileSync(key) })
  : createHttp();

server.listen(port, '127.0.0.1', () => {
  const { port: bound } = server.address();
  const issuer = cert ? `https://localhost:${bound}` : `http://127.0.0.1:${bound}`;
  const provider = new Provider(issuer, {
    jwks: { keys: keys.map((jwk) => (jwk.kty ? jwk : made(jwk))) },
    clients: Object.keys(clients).map((id) => ({
      client_id: id,
      client_secret: `secret-of-${id}`,
      grant_types: ['client_credentials'],
      redirect_uris: [],
      response_types: [],
    })),
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
  server.on('request', provider.callback());
  console.log(issuer);
});
