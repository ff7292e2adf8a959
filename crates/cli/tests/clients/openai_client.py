"""Uses the agent server through the official OpenAI library for Python.

Arguments: the URL of the server and the secret of a token. Prints one JSON object.
"""

import json
import sys
import threading
import time
import urllib.request

import openai

url, secret = sys.argv[1:]


def call_api(path, body=None):
    """Sends a request to the API of the server itself, and returns the body of its response."""
    request = urllib.request.Request(
        f"{url}/api/v1/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def approve_first(approved):
    """Waits for a request for approval, and grants it."""
    while not (waiting := call_api("approvals")["approvals"]):
        time.sleep(0.02)
    approved.append(call_api(f"approvals/{waiting[0]['id']}", {"decision": "once"}))


client = openai.OpenAI(base_url=f"{url}/v1", api_key=secret, max_retries=0)
messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "compute"},
]
chat = client.chat.completions.create(model="default", messages=messages)
stream = client.chat.completions.create(model="default", messages=messages, stream=True)
chunks = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
first = client.responses.create(model="default", input="hello", instructions="Be brief.")
events = client.responses.create(
    model="default", input="again", previous_response_id=first.id, stream=True
)
completed = [event for event in events if event.type == "response.completed"]
try:
    client.chat.completions.create(model="none", messages=messages)
    refused = None
except openai.BadRequestError as error:
    refused = error.status_code

# A tool of the client, and a second question about what it returned.
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
weather = {"name": "get_weather", "description": "Tells the weather.", "parameters": schema}
tools = [{"type": "function", "function": weather}]
talk = [{"role": "user", "content": "How is the weather?"}]
called = client.chat.completions.create(model="default", messages=talk, tools=tools)
calls = called.choices[0].message.tool_calls
talk.append(called.choices[0].message)
for call in calls:
    talk.append({"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 21}'})
warm = client.chat.completions.create(model="default", messages=talk, tools=tools)
talk += [warm.choices[0].message, {"role": "user", "content": "And tomorrow?"}]
later = client.chat.completions.create(model="default", messages=talk, tools=tools)

tools = [{"type": "function", "strict": False, **weather}]
talk = [{"role": "user", "content": "How is the weather?"}]
called = client.responses.create(model="default", input=talk, tools=tools)
talk += called.output
for item in called.output:
    if item.type == "function_call":
        output = {"call_id": item.call_id, "output": '{"degrees": 21}'}
        talk.append({"type": "function_call_output", **output})
continued = client.responses.create(model="default", input=talk, tools=tools)
talk += continued.output
talk.append({"role": "user", "content": "And tomorrow?"})
answered = client.responses.create(model="default", input=talk, tools=tools)

# A command that needs approval.
approved = []
threading.Thread(target=approve_first, args=(approved,), daemon=True).start()
please = [{"role": "user", "content": "please"}]
deleted = client.chat.completions.create(model="default", messages=please)
print(
    json.dumps(
        {
            "models": [model.id for model in client.models.list()],
            "chat": chat.choices[0].message.content,
            "streamed": "".join(chunks),
            "tokens": chat.usage.total_tokens,
            "first": first.output_text,
            "second": completed[0].response.output_text,
            "refused": refused,
            "called": [call.function.name for call in calls],
            "warm": [warm.choices[0].message.content, continued.output_text],
            "later": [later.choices[0].message.content, answered.output_text],
            "approved": [len(approved), deleted.choices[0].message.content.strip()],
        }
    )
)
