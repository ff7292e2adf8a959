// A peer of `selvedge mcp serve`: an MCP server with the official SDK for Node, which runs each
// script in a new runtime of quickjs-emscripten.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { getQuickJS } from "quickjs-emscripten";
import { z } from "zod";

const quickjs = await getQuickJS();
const server = new McpServer({ name: "quickjs-emscripten", version: "1" });

const spec = { description: "Runs JavaScript.", inputSchema: { code: z.string() } };
server.registerTool("script", spec, async ({ code }) => {
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
