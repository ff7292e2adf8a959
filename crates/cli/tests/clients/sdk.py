"""Calls `selvedge mcp serve` with the Python SDK. Arguments: mode, then a URL or the command. Prints JSON."""
import asyncio, json, os, sys

from mcp import Client, StdioServerParameters, types

mode, target = sys.argv[1], sys.argv[2:]
asked, progress = [], []


async def elicit(context, params):
    asked.append(params.message)
    return types.ElicitResult(action="accept", content={"answer": "yes, once"})


async def tell(done, total, message):
    progress.append(message)


async def main():
    server = target[0] if target[0].startswith("http") else StdioServerParameters(command=target[0], args=target[1:], env=dict(os.environ))
    async with Client(server, mode=mode, elicitation_callback=elicit) as client:
        tools = await client.list_tools()
        one = await client.call_tool("script", {"code": "return [1, 2, 3].map(x => x * 2)"})
        failed = await client.call_tool("script", {"code": "throw new Error('no')"})
        handle = await client.call_tool("script", {"code": "await new Promise(r => setTimeout(r, 700)); return 'late'", "yieldAfterMs": 50})
        late = await client.call_tool("script_wait", {"id": handle.structured_content["id"]})
        files = await client.call_tool("script", {"code": "return (await tools.listDir({ path: '.' })).entries.length >= 0"}, progress_callback=tell)
        written = await client.call_tool("script", {"code": "await tools.writeFile({ path: 'by-sdk.txt', content: 'x' }); return 'written'"})
        print(json.dumps({
            "tools": [tool.name for tool in tools.tools],
            "value": one.structured_content["output_json"],
            "failed": failed.is_error,
            "handle": handle.structured_content["status"],
            "late": late.structured_content["output_json"],
            "files": files.structured_content["output_json"],
            "progress": progress,
            "written": written.structured_content["output_json"],
            "asked": asked,
        }))


asyncio.run(main())
