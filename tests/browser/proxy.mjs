// A proxy that serves a console below /limits, and passes on Host. Its argument is the address of the
// console; it prints its own URL.

import { createServer, request as forward } from 'node:http';

const [host, port] = process.argv[2].split(':');
const server = createServer((request, response) => {
  const path = request.url.replace(/^\/limits/, '');
  const options = { host, port, path, method: request.method, headers: request.headers };
  const upstream = forward(options, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  upstream.on('error', () => response.destroy());
  response.on('close', () => upstream.destroy());
  request.pipe(upstream);
});
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
