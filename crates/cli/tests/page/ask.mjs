// The other side of the test: a request is a line on standard output, its answer one on standard
// input.

import { createInterface } from 'node:readline';

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Sends a request to the test, and returns its answer. */
export async function ask(request) {
  process.stdout.write(`ask ${JSON.stringify(request)}\n`);
  const { value } = await lines.next();
  return JSON.parse(value);
}
