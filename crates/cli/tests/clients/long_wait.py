"""A client with a request timeout. A script that takes four times as long, and needs approval, completes.

Arguments: the timeout of the client, the time of the script and the time of the approval, in seconds; then the command.
"""
import asyncio, json, os, sys, time

from mcp import Client, StdioServerParameters, types

timeout, length, thinking = (float(word) for word in sys.argv[1:4])
questions = []

CODE = f"""
const steps = 8;
for (let i = 0; i < steps; i++) {{
  await tools.exec({{ command: ["sh", "-c", `echo step ${{i}} >> steps.log`] }});
  if (i === 3) await tools.mcp.odd.wipe({{ x: 1 }});
  await new Promise(r => setTimeout(r, {length * 1000 / 8}));
}}
return "all steps";
"""


async def elicit(context, params):
    questions.append(params.message)
    await asyncio.sleep(thinking)
    return types.ElicitResult(action="accept", content={"answer": "yes, once"})


async def main():
    server = StdioServerParameters(command=sys.argv[4], args=sys.argv[5:], env=dict(os.environ))
    began, waits, longest = time.monotonic(), 0, 0.0
    async with Client(server, mode="legacy", elicitation_callback=elicit, read_timeout_seconds=timeout) as client:
        async def call(name, args):
            nonlocal longest
            started = time.monotonic()
            result = await client.call_tool(name, args)
            longest = max(longest, time.monotonic() - started)
            return result.structured_content

        item = await call("script", {"code": CODE, "timeoutMs": int(length * 3000)})
        while item["status"] == "running":
            waits += 1
            item = await call("script_wait", {"id": item["id"]})
        print(json.dumps({
            "status": item["status"], "value": item["output_json"], "error": item["error"], "questions": len(questions), "waits": waits,
            "longest": longest, "took": time.monotonic() - began, "calls": [[c["tool"], c["status"]] for c in item["calls"]],
        }))


asyncio.run(main())
