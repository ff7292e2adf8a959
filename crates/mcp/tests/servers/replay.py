"""Plays the server's part of a recorded session: lines that begin with STDIN:, STDOUT: and STDERR:."""
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
    at = next((i for i, (side, said) in enumerate(record) if side == "STDIN" and i not in used and key(said) == key(message)), None)
    if at is None:
        send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "not in the record"}})
        continue
    used.add(at)
    asked = record[at][1]
    token = lambda m: ((m.get("params") or {}).get("_meta") or {}).get("progressToken")
    for side, said in record[at + 1 :]:
        if side != "STDOUT":
            continue
        if "method" not in said and said.get("id") == asked["id"]:
            send({**said, "id": message["id"]})
            break
        if "method" in said and "id" in said:
            send(said)
            while receive().get("id") != said["id"]:
                pass
        elif said.get("method") == "notifications/progress" and said["params"].get("progressToken") == token(asked):
            send({**said, "params": {**said["params"], "progressToken": token(message)}})
