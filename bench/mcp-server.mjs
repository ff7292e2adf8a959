// A peer of `selvedge mcp serve`: the official SDK for Node around quickjs-emscripten, one fresh runtime per script.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { getQuickJS } from "quickjs-emscripten";
import { z } from "zod";

const quickjs = await getQuickJS();
const server = new McpServer({ name: "quickjs-emscripten", version: "1" });

server.registerTool("script", { description: "Runs JavaScript.", inputSchema: { code: z.string() } }, async ({ code }) => {
  const runtime = quickjs.newRuntime();
  runtime.setMemoryLimit(96 << 20);
  runtime.setMaxStackSize(512 << 10);
  const context = runtime.newContext();
  try {
    const promise = context.unwrapResult(context.evalCode(`(async () => { ${code} })()`));
    runtime.executePendingJobs();
    const state = context.getPromiseState(promise);
    const value = JSON.stringify(context.dump(state.value));
    state.value.dispose();
    promise.dispose();
    return { content: [{ type: "text", text: value }] };
  } finally {
    context.dispose();
    runtime.dispose();
  }
});

await server.connect(new StdioServerTransport());
