"""Drives a session with the client that openapi-python-client generated from the OpenAPI document.

Arguments: the folder of the generated package, the URL of the server and the secret of a token.
Prints the answer of the session.
"""

import sys

folder, url, secret = sys.argv[1:]
sys.path.insert(0, folder)

from selvedge_client import AuthenticatedClient
from selvedge_client.api.messages import get_message, send_message
from selvedge_client.api.sessions import create_session, get_session, list_sessions
from selvedge_client.models import CreateSession, SendMessage

with AuthenticatedClient(base_url=url, token=secret, raise_on_unexpected_status=True) as client:
    created = create_session.sync(client=client, body=CreateSession(title="Generated"))
    sent = send_message.sync(created.id, client=client, body=SendMessage(text="hello"))
    message = get_message.sync(created.id, sent.number, client=client, wait_ms=60000)
    assert get_session.sync(created.id, client=client).title == "Generated"
    listed = list_sessions.sync(client=client).sessions
    assert [session.id for session in listed] == [created.id], listed
    print(message.answer)
