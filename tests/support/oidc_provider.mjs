// A real OpenID Connect provider, npm's oidc-provider, whose accounts and ID tokens a test decides
// on. It reads a JSON object from each line of its input: `accounts` (claims by login), `forge` (claims
// that replace those of the next ID tokens, of which "raw:…" is written without quotes; their key id `kid`,
// signature `alg`, or a stranger's key by `signed_by`; `discovery`, `userinfo` and `token`, which replace
// parts of these documents; `more_keys`; and `after_ms`, by path) and `rotate` (another signing key), and answers with the
// number of requests for its keys.

import { createInterface } from "node:readline";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";
import { CompactSign, UnsecuredJWT, decodeJwt, exportJWK, exportSPKI, generateKeyPair } from "jose";

const [port, redirectUri] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const keys = []; // the newest first: it signs
let accounts = {};
let forged = null;
let keyRequests = 0;
let provider;

const json = (document) => JSON.stringify(document).replace(/"raw:([^"]*)"/g, "$1");

async function rotate() {
  const { privateKey, publicKey } = await generateKeyPair("RS256", { extractable: true });
  const kid = `key-${keys.length}-${Date.now()}`;
  keys.unshift({ privateKey, publicKey, kid, jwk: { ...(await exportJWK(privateKey)), kid, alg: "RS256", use: "sig" } });
  provider = new Provider(issuer, {
    clients: [{ client_id: "lab", client_secret: "secret of the lab", redirect_uris: [redirectUri] }],
    jwks: { keys: [keys[0].jwk] },
    claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
    pkce: { required: () => true },
    cookies: { keys: ["of a test"] },
    ttl: { Interaction: 600, Session: 600, Grant: 600, IdToken: 600, AccessToken: 600 },
  });
  provider.use(async (ctx, next) => {
    await next();
    if (ctx.path === "/jwks") keyRequests += 1;
    if (forged === null) return;
    const { kid = keys[0].kid, alg = "RS256", signed_by: stranger, discovery, userinfo, token, more_keys: more = [], after_ms: ms = {}, ...others } = forged;
    if (ctx.path.startsWith("/.well-known/")) ctx.body = { ...ctx.body, ...discovery };
    if (ctx.path === "/me") ctx.body = json({ ...ctx.body, ...userinfo });
    if (ms[ctx.path]) await new Promise((go) => setTimeout(go, ms[ctx.path]));
    if (ctx.path === "/jwks") ctx.body = { keys: [...more, ...ctx.body.keys] };
    if (ctx.path !== "/token" || !ctx.body?.id_token) return;
    const claims = { ...decodeJwt(ctx.body.id_token), ...others };
    for (const name in claims) if (claims[name] === null) delete claims[name];
    const { privateKey } = stranger ? await generateKeyPair("RS256") : keys[0];
    const key = alg === "HS256" ? new TextEncoder().encode(await exportSPKI(keys[0].publicKey)) : privateKey;
    const unsigned = new UnsecuredJWT(claims).encode();
    const signed = () => new CompactSign(new TextEncoder().encode(json(claims))).setProtectedHeader({ alg, kid }).sign(key);
    const id_token = alg === "none" ? unsigned : await signed();
    ctx.body = { ...ctx.body, id_token, ...token };
  });
}

await rotate();
createServer((request, response) => provider.callback()(request, response)).listen(port, "127.0.0.1", () => console.log(keyRequests));
for await (const line of createInterface({ input: process.stdin })) {
  const told = JSON.parse(line);
  if (told.accounts) accounts = told.accounts;
  if ("forge" in told) forged = told.forge;
  if (told.rotate) await rotate();
  console.log(keyRequests);
}
process.exit();
