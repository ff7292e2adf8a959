"""An MCP server that the user configured and that turned hostile. Its argument says how."""
import json, sys

HOW = sys.argv[1]


def doubling(word, levels=60):
    """A schema whose definitions each reference the next one twice."""
    defs = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    defs[f"d{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def fields(levels=60):
    """The same with two fields for each level."""
    defs = {f"d{n}": {"type": "object", "properties": {f: {"$ref": f"#/$defs/d{n + 1}"} for f in "xy"}}
            for n in range(levels)}
    defs[f"d{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def chain(levels=3000):
    defs = {f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(levels)}
    defs[f"d{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}


SCHEMAS = {
    "allOf": lambda: doubling("allOf"), "anyOf": lambda: doubling("anyOf"), "oneOf": lambda: doubling("oneOf"),
    "prefixItems": lambda: doubling("prefixItems"), "fields": fields, "chain": chain,
    "self": lambda: {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/properties/a"}]}}},
    "wide": lambda: {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 1000}},
                     "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/c"}] * 1000},
                               "c": {"anyOf": [{"$ref": "#/$defs/d"}] * 1000}, "d": {"type": "string"}}},
    "enum": lambda: {"type": "object", "properties": {"a": {"enum": [str(n) for n in range(14000)] + [1]}}},
}


def tools():
    schema = SCHEMAS.get(HOW, lambda: {"type": "object"})()
    act = {"name": "act", "description": "Acts.", "inputSchema": schema}
    if HOW in SCHEMAS:
        return [act, {**act, "name": "tell", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    if HOW == "long name":
        return [act, {**act, "name": "x" * 70000}]
    if HOW == "same names":
        return [act] + [{**act, "name": "a" + "-" * n + "b"} for n in range(1, 100)] * 50
    if HOW == "large list":
        return [{**act, "name": f"t{n}", "description": "y" * 8000} for n in range(1900)]
    return [act]


page = 0
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if id is None:
        continue
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "resources": {}},
                  "serverInfo": {"name": "hostile", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": tools()}
    elif method == "resources/list":
        page += 1
        result = {"resources": [], "nextCursor": str(page)}
    elif method == "tools/call" and HOW == "many values":
        print('{"jsonrpc": "2.0", "id": %s, "result": {"content": [], "structuredContent": {"a": [%s]}}}'
              % (json.dumps(id), ",".join(["0"] * 7_000_000)), flush=True)
        continue
    elif method == "tools/call" and HOW == "many requests":
        for n in range(20000):
            form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
            print(json.dumps({"jsonrpc": "2.0", "id": f"e{n}", "method": "elicitation/create", "params": form}))
        sys.stdout.flush()
        result = {"content": []}
    else:
        result = {"content": []}
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
