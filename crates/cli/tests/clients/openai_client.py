"""Uses the agent server through the official OpenAI library for Python.

Arguments: the URL of the server and the secret of a token. Prints one JSON object.
"""

import json
import sys

import openai

url, secret = sys.argv[1:]
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
        }
    )
)
