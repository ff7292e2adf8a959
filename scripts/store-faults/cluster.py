"""A private PostgreSQL cluster, a scripted model and servers of Selvedge, for the fault tests."""

import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = pathlib.Path(__file__).resolve().parent
SCOPES = ["sessions", "documents", "channels", "memory", "approvals"]
START_TIMEOUT = 90
# A message names its task as `task:NAME;KIND;`.
TASK = re.compile(r"task:([a-z0-9-]+);([a-z]+);")


class Postgres:
    """A cluster in a folder, without a network port. A crash keeps what was committed."""

    def __init__(self, folder, settings=None):
        self.folder = folder
        self.settings = settings or {}
        self.programs = subprocess.check_output(
            [HERE.parent / "setup-postgres"], text=True
        ).strip()
        folder.mkdir()
        self.prefix = []
        if os.getuid() == 0:
            # PostgreSQL refuses to run as root.
            self.prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            subprocess.check_call(["chown", "postgres", folder])
        self.run("initdb", "-U", "selvedge", "-A", "trust", "--encoding=UTF8", "--locale=C", "-N")
        self.control("start")

    def run(self, program, *args):
        command = [*self.prefix, f"{self.programs}/{program}", "-D", self.folder / "data", *args]
        with open(self.folder.parent / "postgres-control.log", "a") as log:
            subprocess.check_call(command, cwd=self.folder, stdout=log, stderr=log)

    def control(self, action, *args):
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self.folder}'",
            "max_connections": "300",
            # The machine does not crash, so the disk need not have what the kernel has. Scripts
            # that measure times turn it on.
            "fsync": "off",
            **self.settings,
        }
        options = " ".join(f"-c {key}={value}" for key, value in settings.items())
        log = self.folder / "data" / "log"
        self.run("pg_ctl", "-w", "-t", "60", "-l", log, "-o", options, *args, action)

    def restart(self, mode):
        self.control("restart", "-m", mode)

    def stop(self):
        try:
            self.control("stop", "-m", "immediate")
        except subprocess.CalledProcessError:
            pass

    @property
    def url(self):
        host = urllib.parse.quote(str(self.folder), safe="")
        return f"postgres://selvedge@{host}/postgres"

    def query(self, sql):
        """Returns the rows of a query as lists of texts."""
        command = [f"{self.programs}/psql", "-h", self.folder, "-U", "selvedge", "-d", "postgres"]
        out = subprocess.check_output([*command, "-XAtq", "-F", "\x1f", "-c", sql], text=True)
        return [line.split("\x1f") for line in out.splitlines()]

    def cut_connections(self, share):
        """Ends a share of the connections of servers."""
        sql = f"""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
                AND random() < {share}"""
        return int(self.query(sql)[0][0])


class Model:
    """A model on loopback that answers each task with a script, and its result with `done NAME`."""

    def __init__(self):
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                self.reply("application/json", '{"object":"list","data":[]}')

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                answer = model.answer(json.loads(body)["messages"])
                chunk = {"role": "assistant", "content": answer}
                usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
                events = [
                    {"choices": [{"index": 0, "delta": chunk, "finish_reason": None}]},
                    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                    {"choices": [], "usage": usage},
                ]
                for event in events:
                    event |= {"id": "1", "object": "chat.completion.chunk", "model": "mock"}
                text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
                self.reply("text/event-stream", text + "data: [DONE]\n\n")

            def reply(self, kind, text):
                body = text.encode()
                try:
                    self.send_response(200)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    # The server was killed meanwhile.
                    self.close_connection = True

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *args):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def answer(messages):
        last = json.dumps(messages[-1]["content"])
        tasks = TASK.findall(last)
        if not tasks:
            earlier = TASK.findall(json.dumps(messages))
            return f"done {earlier[-1][0]}" if earlier else "done"
        name, kind = tasks[-1]
        command = {
            "quick": "echo x >> calls/$1",
            # Says when it begins and, unless it is killed, when it ends.
            "slow": "echo begin >> calls/$1; sleep 60; echo end >> calls/$1",
        }[kind]
        parts = ["a", "b"] if kind == "quick" else ["a"]
        script = f"""const codes = [];
for (const part of {json.dumps(parts)}) {{
  const command = ['sh', '-c', {json.dumps(command)}, 'sh', '{name}-' + part];
  codes.push((await tools.exec({{ command }})).exitCode);
}}
return codes;"""
        return f"<tool-calls>\n{script}\n</tool-calls>"


def faketime_library():
    """Returns the library of the package faketime; Debian has a folder per architecture."""
    for pattern in ("lib/*/faketime", "lib64/faketime", "lib/faketime"):
        for library in pathlib.Path("/usr").glob(f"{pattern}/libfaketime.so.1"):
            return str(library)
    raise SystemExit("error: the package faketime is not installed, which the servers' clocks need")


class Server:
    """A server on a machine of its own: its home is new, and the workspace is shared."""

    count = 0

    def __init__(self, lab, faketime=None):
        Server.count += 1
        self.name = f"server{Server.count}"
        self.home = lab.folder / self.name
        lab.write_home(self.home)
        self.log = lab.folder / f"{self.name}.log"
        command = [lab.binary, "--log", self.log, "serve", "--addr", "127.0.0.1:0"]
        env = lab.environment(self.home)
        if faketime:
            # Not the program `faketime`, which would be the process that is killed.
            env |= {"LD_PRELOAD": faketime_library(), "FAKETIME": faketime, "DONT_FAKE_MONOTONIC": "1"}
        self.process = subprocess.Popen(
            command, cwd=lab.work, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.address = None
        self.errors = []
        threading.Thread(target=self.read_errors, daemon=True).start()
        deadline = time.monotonic() + START_TIMEOUT
        while self.address is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start: {self.errors}")
            time.sleep(0.02)
        self.begun = time.monotonic()

    def read_errors(self):
        for line in self.process.stderr:
            line = line.decode(errors="replace").rstrip()
            self.errors.append(line)
            if line.startswith("serving at "):
                host, port = line.split("://")[1].split(":")
                self.address = (host, int(port))

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def log_text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Lab:
    """Everything that a fault test needs, in a temporary folder."""

    def __init__(self, folder, binary, database_settings=None):
        self.folder = folder
        self.binary = binary
        self.work = folder / "work"
        (self.work / "calls").mkdir(parents=True)
        self.model = Model()
        self.postgres = Postgres(folder / "postgres", database_settings)
        home = folder / "admin"
        self.write_home(home)
        scopes = [word for scope in SCOPES for word in ("--scope", scope)]
        command = [binary, "serve", "token", "create", "all", "--workspace", self.work, *scopes]
        env = self.environment(home)
        self.secret = subprocess.check_output(command, cwd=self.work, env=env, text=True).strip()
        # The servers that clients use, and all that were started.
        self.servers = []
        self.started = []

    def write_home(self, home):
        home.mkdir()
        (home / "config.toml").write_text(
            f"""model = "mock"
model_provider = "mock"
store = "{self.postgres.url}"
memory.scope = "session"
serve.max_concurrent_turns = 300
serve.max_queued_turns = 10000

[model_providers.mock]
base_url = "{self.model.url}"
wire_api = "chat"
"""
        )

    def environment(self, home):
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}
        return env | {"SELVEDGE_HOME": str(home), "LANG": "C.UTF-8"}

    def start_server(self, faketime=None):
        server = Server(self, faketime)
        self.servers.append(server)
        self.started.append(server)
        return server

    def remove_server(self, server):
        self.servers.remove(server)

    def stop(self):
        for server in self.started:
            if server.process.poll() is None:
                server.kill()
        self.postgres.stop()
        self.model.server.shutdown()
