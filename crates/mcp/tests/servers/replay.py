"""Replays the server's side of a recorded session.

The lines of the file start with STDIN:, STDOUT: or STDERR:."""
import json, sys

record = []
for line in open(sys.argv[1], encoding="utf-8"):
    side, _, rest = line.rstrip("\n").partition(": ")
    if side in ("STDIN", "STDOUT") and rest.startswith("{"):
        record.append((side, json.loads(rest)))

used = set()


def key(message):
    return message.get("method"), (message.get("params") or {}).get("name")


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


while True:
    message = receive()
    if "id" not in message or "method" not in message:
        continue
    if message["method"] == "ping":
        send({"jsonrpc": "2.0", "id": message["id"], "result": {}})
        continue
    matches = (i for i, (side, line) in enumerate(record) if side == "STDIN" and i not in used and key(line) == key(message))
    index = next(matches, None)
    if index is None:
        error = {"code": -32601, "message": "not in the recording"}
        send({"jsonrpc": "2.0", "id": message["id"], "error": error})
        continue
    used.add(index)
    request = record[index][1]
    token = lambda m: ((m.get("params") or {}).get("_meta") or {}).get("progressToken")
    for side, line in record[index + 1 :]:
        if side != "STDOUT":
            continue
        if "method" not in line and line.get("id") == request["id"]:
            send({**line, "id": message["id"]})
            break
        if "method" in line and "id" in line:
            send(line)
            while receive().get("id") != line["id"]:
                pass
        elif line.get("method") == "notifications/progress" and line["params"].get("progressToken") == token(request):
            send({**line, "params": {**line["params"], "progressToken": token(message)}})
