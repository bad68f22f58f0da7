/** Explains why there is no connection, as the command line does: gRPC has the words of OpenSSL and libuv. */

const [NO_SERVER, DISTRUST] = ["no server at ADDRESS", "the certificate of ADDRESS is not trusted"];
const EXPLANATIONS: [RegExp, string][] = [
  [/^Name resolution failed/, `${NO_SERVER}: the name has no address`],
  [/connect ECONNREFUSED/, `${NO_SERVER}: connection refused (is \`rlaas serve\` running?)`],
  [/connect E|Last error: null/, `${NO_SERVER}: it can't be reached`],
  [/certificate has expired/, `${DISTRUST}: it has expired`],
  [/altnames/, `${DISTRUST}: it is for another host name`],
  [/self.signed|unable to (get|verify)/, `${DISTRUST}: unknown issuer, tls.ca must have its authority`],
  [/wrong version number/, "ADDRESS does not speak TLS: try http://HOST"],
  [/./, "ADDRESS does not answer gRPC: it must be an address of server.listen, REMEDY"],
];
const REMEDY = "https://HOST with tls.ca if it requires TLS";
const TLS_REMEDY = "with tls.certificate and tls.privateKey that it accepts if it requires a client certificate";

/** Returns the details of a status, explained if there was no connection to this address. */
export function explain(details: string, address: string, hasTls: boolean): string {
  if (!/^Name resolution failed|No connection established/.test(details)) {
    return details;
  }
  const [, text] = EXPLANATIONS.find(([pattern]) => pattern.test(details))!;
  const host = address.replace(/^\w+:\/\/\/?|\/$/g, "");
  return text
    .replace("REMEDY", hasTls ? TLS_REMEDY : REMEDY)
    .replace("ADDRESS", address)
    .replace("HOST", host);
}
