// Measures the peers in one Node process: reads one JSON request per line from standard input, and
// writes one JSON list of milliseconds per line to standard output.
import { createInterface } from "node:readline";
import { getQuickJS } from "quickjs-emscripten";
import ivm from "isolated-vm";

const quickjs = await getQuickJS();
const MEMORY = 96 << 20;

const awaitTen = "(async () => { for (let i = 0; i < 10; i++) await tool(i); return 1 })()";

const works = {
  // Creates a runtime with the same limits, evaluates one expression and disposes of it. The peers
  // do not harden the realm, so that they have less to do.
  "quickjs-emscripten/one": () => {
    const runtime = quickjs.newRuntime();
    runtime.setMemoryLimit(MEMORY);
    runtime.setMaxStackSize(512 << 10);
    const context = runtime.newContext();
    context.unwrapResult(context.evalCode("1+1")).dispose();
    context.dispose();
    runtime.dispose();
  },
  "isolated-vm/one": () => {
    const isolate = new ivm.Isolate({ memoryLimit: 96 });
    const context = isolate.createContextSync();
    context.evalSync("1+1");
    context.release();
    isolate.dispose();
  },
  "quickjs-emscripten/await-ten": () => {
    const runtime = quickjs.newRuntime();
    runtime.setMemoryLimit(MEMORY);
    const context = runtime.newContext();
    const waiting = [];
    const tool = context.newFunction("tool", () => {
      const deferred = context.newPromise();
      waiting.push(deferred);
      return deferred.handle;
    });
    context.setProp(context.global, "tool", tool);
    tool.dispose();
    const promise = context.unwrapResult(context.evalCode(awaitTen));
    for (;;) {
      runtime.executePendingJobs();
      const deferred = waiting.shift();
      if (!deferred) break;
      deferred.resolve(context.undefined);
      deferred.dispose();
    }
    const state = context.getPromiseState(promise);
    if (state.type !== "fulfilled") throw new Error(`the promise is not fulfilled: ${state.type}`);
    state.value.dispose();
    promise.dispose();
    context.dispose();
    runtime.dispose();
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { work, times } = JSON.parse(line);
  const samples = [];
  for (let i = 0; i < times; i++) {
    const start = performance.now();
    works[work]();
    samples.push(performance.now() - start);
  }
  process.stdout.write(`${JSON.stringify(samples)}\n`);
}
