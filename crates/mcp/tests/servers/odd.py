"""An MCP server for tests. Its first argument names the way in which it misbehaves."""
import json, os, sys, time

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"
STATE = sys.argv[2] if len(sys.argv) > 2 else None


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tool(name, **more):
    return {"name": name, "description": f"Tool {name}", "inputSchema": {"type": "object", "properties": {"x": {"type": "number"}}}, **more}


VERBS = ["create", "list", "get", "update", "delete", "search", "archive", "export", "import", "assign"]
NOUNS = ["issue", "pull_request", "invoice", "customer", "calendar_event", "message", "document", "deployment", "database_row", "ticket",
         "contact", "report", "workflow", "pipeline", "secret", "role", "webhook", "campaign", "subscription", "shipment",
         "order", "product", "review", "comment", "label", "milestone", "release", "branch", "commit", "artifact",
         "alert", "dashboard", "metric", "log_entry", "trace", "incident", "runbook", "policy", "certificate", "domain",
         "bucket", "queue", "topic", "function", "cluster", "node", "volume", "snapshot", "image", "network"]


def catalogue():
    """Fifty realistic tools. The number in the mode selects which."""
    number = int(MODE.split(":")[1])
    listed = []
    for noun in NOUNS[number * 5:number * 5 + 5]:
        for verb in VERBS:
            phrase = noun.replace("_", " ")
            listed.append({
                "name": f"{verb}_{noun}",
                "description": f"{verb.capitalize()} one or more {phrase}s in the connected workspace. Returns the affected {phrase}s with all their fields, "
                               f"including identifiers and timestamps. Requires the scope {noun}:{'write' if verb not in ('list', 'get', 'search') else 'read'}.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "workspace_id": {"type": "string", "description": "Identifier of the workspace that owns it"},
                        f"{noun}_id": {"type": "string", "description": f"Identifier of the {phrase}"},
                        "fields": {"type": "array", "items": {"type": "string"}, "description": "Names of fields to return"},
                        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "Maximum number of results"},
                        "dry_run": {"type": "boolean", "description": "Validate without applying"},
                    },
                    "required": ["workspace_id"],
                },
            })
    return {"tools": listed}


def tools(params):
    if MODE.startswith("catalogue:"):
        return catalogue()
    if MODE == "many":
        cursor = int(params.get("cursor") or 0)
        names = [f"tool_{i}" for i in range(cursor, min(cursor + 100, 2000))]
        more = {"nextCursor": str(cursor + 100)} if cursor + 100 < 2000 else {}
        return {"tools": [tool(name) for name in names], **more}
    if MODE == "pages-forever":
        return {"tools": [tool("again")], "nextCursor": str(time.time())}
    if MODE == "odd-names":
        names = ["__proto__", "constructor", "toString", "then", "get-sum", "get_sum", "2fa", "a.b", "with space"]
        return {"tools": [tool(name) for name in names]}
    if MODE == "changing":
        names = ["first", "second"] if STATE and os.path.exists(STATE) else ["first"]
        return {"tools": [tool(name) for name in names]}
    if MODE == "bank":
        return {"tools": [tool("balance", annotations={"readOnlyHint": True}), tool("pay"), tool("pay_slowly"), tool("pay_loudly"), tool("give")]}
    if MODE == "annotated":
        return {"tools": [
            tool("look", annotations={"readOnlyHint": True}),
            tool("wipe", annotations={"readOnlyHint": False, "destructiveHint": True}),
            tool("plain"),
        ]}
    return {"tools": [tool("echo"), tool("fail"), tool("hang"), tool("die"), tool("huge"), tool("count"), tool("image"), tool("ask"), tool("think"), tool("slow")] + ([tool("nag"), tool("visit"), tool("fickle")] if MODE == "asking" else [])}


def text(value):
    return {"content": [{"type": "text", "text": value}]}


asked = {}
nagged = []


def call(id, params):
    name, args = params["name"], params.get("arguments") or {}
    if MODE in ("odd-names", "many", "annotated") or MODE.startswith("catalogue:"):
        return {"content": [], "structuredContent": {"called": name, "args": args}}
    if MODE == "bank":
        if name == "pay_slowly":
            # Long enough for a test to kill the client meanwhile.
            time.sleep(2)
        if name != "balance":
            with open(STATE, "a") as file:
                file.write("paid\n")
        if name == "pay_loudly":
            return text("y" * 17_000_000)
        if name == "pay":
            os._exit(3)
        with open(STATE, "a+") as file:
            file.seek(0)
            return {"content": [], "structuredContent": {"paid": len(file.readlines())}}
    if name == "echo":
        return {"content": [], "structuredContent": args}
    if name == "fail":
        return {**text("it did not work"), "isError": True}
    if name == "count":
        with open(STATE, "a") as file:
            file.write("x")
        return text(str(os.path.getsize(STATE)))
    if name == "second":
        return text("second")
    if name == "first":
        open(STATE, "w").close()
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return text("first")
    if name == "image":
        return {"content": [{"type": "text", "text": "a dot"}, {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]}
    if name == "huge":
        return text("y" * 50_000_000)
    if name == "die":
        if STATE:
            with open(STATE, "a") as file:
                file.write("died\n")
        print("fatal error", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "slow":
        token = (params.get("_meta") or {}).get("progressToken")
        for step in range(4):
            time.sleep(0.4)
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": step + 1, "total": 4, "message": "working"}})
        return text("slow but done")
    if name == "ask":
        asked["elicit"] = id
        field = args.get("field", "choice")
        send({"jsonrpc": "2.0", "id": "elicit", "method": "elicitation/create", "params": {"message": "Which one?", "requestedSchema": {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}}})
        if STATE:
            open(STATE, "w").close()
        return None
    if name == "think":
        asked["sample"] = id
        send({"jsonrpc": "2.0", "id": "sample", "method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "six times seven?"}}], "maxTokens": 10}})
        return None
    if name == "nag":
        asked["nag"] = id
        nagged.append(None)
        send({"jsonrpc": "2.0", "id": "nag", "method": "elicitation/create", "params": {"message": "Are you sure?", "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}}}})
        return None
    if name == "fickle":
        send({"jsonrpc": "2.0", "id": "fickle", "method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "really?"}}], "maxTokens": 10}})
        while not os.path.exists(STATE):
            time.sleep(0.01)
        send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "fickle"}})
        return None
    if name == "visit":
        asked["visit"] = id
        send({"jsonrpc": "2.0", "id": "visit", "method": "elicitation/create", "params": {"mode": "url", "message": "Log in", "url": "https://example.com/login", "elicitationId": "e1"}})
        return None
    return None  # hang: never responds


if MODE == "flaky" and not os.path.exists(STATE):
    print("not yet", file=sys.stderr)
    sys.exit(1)
if MODE == "crash-loop":
    print("bad configuration", file=sys.stderr)
    sys.exit(1)
if MODE == "silent":
    time.sleep(600)
if MODE == "garbage":
    print("Welcome to the server!\nLoading...")
    sys.stdout.flush()
if MODE == "flood":
    while True:
        sys.stdout.write("noise noise noise noise noise noise noise\n" * 1000)

for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if MODE == "garbage":
        print("DEBUG got", method)
        print('{"half": ')
        sys.stdout.flush()
    if method == "initialize":
        info = {"name": "selvedge" if MODE == "ourselves" else "odd", "version": "1"}
        send({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}})
    elif method == "ping":
        if MODE != "hangs-all":
            send({"jsonrpc": "2.0", "id": id, "result": {}})
    elif method == "tools/list":
        send({"jsonrpc": "2.0", "id": id, "result": tools(params)})
    elif method == "tools/call":
        if MODE == "hangs-all":
            continue
        result = call(id, params)
        if result is not None:
            send({"jsonrpc": "2.0", "id": id, "result": result})
    elif method is None and id == "nag":
        nagged[-1] = (message.get("result") or {}).get("action")
        if len(nagged) < 15:
            call(asked["nag"], {"name": "nag"})
        else:
            send({"jsonrpc": "2.0", "id": asked["nag"], "result": text(" ".join(map(str, nagged)))})
    elif method is None and id in asked:
        send({"jsonrpc": "2.0", "id": asked[id], "result": text(json.dumps(message.get("result") or message.get("error")))})
