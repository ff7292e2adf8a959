// Records the sessions on which the levels of turns are measured: downloads five packages into
// target/bench-sessions, and runs the 200 turns of session-tasks.mjs with `selvedge exec` and a
// scripted model. Tests and builds run for real. Writes target/bench-sessions/turns.jsonl: one line
// per turn with the raw turn and what is at stake in it.
//
// usage: node bench/record-sessions.mjs [SELVEDGE]
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { packages, turnsOfPackage } from './session-tasks.mjs';

const root = path.resolve(import.meta.dirname, '..');
const selvedge = path.resolve(process.argv[2] ?? path.join(root, 'target/debug/selvedge'));
const out = path.join(root, 'target/bench-sessions');
const venv = path.join(out, 'venv');
const sh = (folder, command, args, options = {}) =>
  execFileSync(command, args, {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'inherit'],
    encoding: 'utf8',
    ...options,
  });

/** Downloads a package into target/bench-sessions, without changing it, and returns its folder. */
function download(pkg) {
  const folder = path.join(out, 'packages', pkg.name);
  if (fs.existsSync(folder)) return folder;
  console.error(`record: downloading ${pkg.name} ${pkg.version}`);
  const temporary = fs.mkdtempSync(path.join(os.tmpdir(), 'record-'));
  fs.mkdirSync(path.dirname(folder), { recursive: true });
  if (pkg.from === 'pypi') {
    sh(temporary, path.join(venv, 'bin/pip'), [
      'download',
      '-q',
      '--no-deps',
      '--no-build-isolation',
      '--no-binary',
      ':all:',
      `${pkg.name}==${pkg.version}`,
    ]);
  } else if (pkg.from === 'npm') {
    sh(temporary, 'npm', ['pack', '--silent', `${pkg.name}@${pkg.version}`]);
  } else {
    fs.mkdirSync(path.join(temporary, 'src'));
    fs.writeFileSync(path.join(temporary, 'src/lib.rs'), '');
    fs.writeFileSync(
      path.join(temporary, 'Cargo.toml'),
      '[package]\n' +
        'name = "fetch"\n' +
        'version = "0.1.0"\n' +
        'edition = "2021"\n' +
        '[dependencies]\n' +
        `${pkg.name} = "=${pkg.version}"\n`,
    );
    sh(temporary, 'cargo', ['vendor', '-q', '--versioned-dirs', 'vendor']);
    fs.renameSync(path.join(temporary, 'vendor', `${pkg.name}-${pkg.version}`), folder);
    return folder;
  }
  const archive = fs.readdirSync(temporary).find((name) => /\.(tgz|tar\.gz)$/.test(name));
  sh(temporary, 'tar', ['xzf', archive]);
  const unpacked = fs
    .readdirSync(temporary)
    .find((name) => fs.statSync(path.join(temporary, name)).isDirectory());
  sh(temporary, 'cp', ['-r', unpacked, folder]);
  if (pkg.install) {
    const dependencies = path.join(temporary, 'dependencies');
    fs.mkdirSync(dependencies);
    fs.writeFileSync(path.join(dependencies, 'package.json'), '{}');
    sh(dependencies, 'npm', [
      'install',
      '--silent',
      '--no-audit',
      '--no-fund',
      '--ignore-scripts',
      ...pkg.install,
    ]);
    sh(dependencies, 'cp', ['-r', 'node_modules', folder]);
  }
  return folder;
}

let calls = 0;

/** Encodes an answer of the model in the format of the chat completions API. */
function encode(answer) {
  const delta = answer.text
    ? { role: 'assistant', content: answer.text }
    : {
        role: 'assistant',
        tool_calls: [
          {
            index: 0,
            id: `call_${(calls += 1)}`,
            type: 'function',
            function: { name: 'script', arguments: JSON.stringify({ code: answer.script }) },
          },
        ],
      };
  const event = (delta, finish_reason) => {
    const choices = [{ index: 0, delta, finish_reason }];
    return `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', choices })}\n\n`;
  };
  return event(delta, null) + event({}, answer.text ? 'stop' : 'tool_calls') + 'data: [DONE]\n\n';
}

/** Starts a server for the scripted model. `queue` has its next answers. */
function startModel(queue) {
  const server = http.createServer((request, response) => {
    request.resume().on('end', () => {
      if (request.method !== 'POST') return response.end('{"data":[{"id":"mock"}]}');
      response.setHeader('content-type', 'text/event-stream');
      response.end(encode(queue.shift() ?? { text: 'There is nothing more to do.' }));
    });
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

function runSelvedge(work, env, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(selvedge, args, { cwd: work, env, stdio: ['ignore', 'pipe', 'inherit'] });
    const chunks = [];
    child.stdout.on('data', (chunk) => chunks.push(chunk));
    child.on('close', (code) =>
      code === 0
        ? resolve(Buffer.concat(chunks).toString())
        : reject(new Error(`selvedge ${args.slice(0, 3).join(' ')} ended with ${code}`)),
    );
  });
}

/** Changes a file of the workspace before a turn, as its user would have. */
function change(work, edit) {
  const file = path.join(work, edit.path);
  const before = fs.readFileSync(file, 'utf8');
  const after = edit.append ? before + edit.append : before.replace(edit.old, () => edit.new);
  if (after === before) throw new Error(`${edit.path} does not have ${edit.old}`);
  fs.writeFileSync(file, after);
}

async function record(pkg, write) {
  const folder = download(pkg);
  const temporary = fs.mkdtempSync(path.join(os.tmpdir(), `record-${pkg.name}-`));
  const [work, home] = [path.join(temporary, pkg.name), path.join(temporary, 'home')];
  fs.mkdirSync(home);
  sh(temporary, 'cp', ['-r', folder, work]);
  fs.writeFileSync(
    path.join(work, '.gitignore'),
    'target\nnode_modules\n__pycache__\n.pytest_cache\nCargo.lock\n',
  );
  sh(work, 'git', ['init', '-q', '-b', 'main']);
  sh(work, 'git', ['add', '-A']);
  sh(work, 'git', [
    '-c',
    'user.name=a',
    '-c',
    'user.email=a@localhost',
    'commit',
    '-q',
    '-m',
    'Import the package',
  ]);
  const queue = [];
  const server = await startModel(queue);
  fs.writeFileSync(
    path.join(home, 'config.toml'),
    'model = "mock"\n' +
      'model_provider = "mock"\n' +
      'approval_policy = "never"\n' +
      'sandbox_mode = "danger-full-access"\n' +
      'model_context_window = 128000\n' +
      '[model_providers.mock]\n' +
      `base_url = "http://127.0.0.1:${server.address().port}/v1"\n` +
      'wire_api = "chat"\n',
  );
  const env = {
    ...process.env,
    ...pkg.env,
    SELVEDGE_HOME: home,
    PATH: `${venv}/bin:${process.env.PATH}`,
    CARGO_TARGET_DIR: '',
    PYTHONDONTWRITEBYTECODE: '1',
  };
  delete env.CARGO_TARGET_DIR;
  let session;
  let number = 0;
  for (const turn of turnsOfPackage(pkg)) {
    number += 1;
    if (turn.before) change(work, turn.before);
    queue.splice(0, queue.length, ...turn.answers);
    const events = await runSelvedge(work, env, [
      'exec',
      '--json',
      ...(session ? ['--continue', session] : []),
      turn.request,
    ]);
    session ??= events.match(/"(ses_[A-Za-z0-9]+)"/)?.[1];
    if (queue.length)
      throw new Error(`${pkg.name}, turn ${number}: ${queue.length} answers are left`);
    const raw = await runSelvedge(work, env, [
      'memory',
      'turn',
      `T-${number}`,
      '--session',
      session,
      '--level',
      'R',
    ]);
    write({ session: pkg.name, turn: number, request: turn.request, at_stake: turn.atStake, raw });
    console.error(`record: ${pkg.name} T-${number}, ${raw.length} bytes`);
    sh(work, 'git', ['checkout', '-q', '--', '.']);
  }
  server.close();
  fs.rmSync(temporary, { recursive: true, force: true });
}

fs.mkdirSync(out, { recursive: true });
if (!fs.existsSync(path.join(venv, 'bin/pytest'))) {
  sh(out, 'python3', ['-m', 'venv', 'venv']);
  sh(out, path.join(venv, 'bin/pip'), [
    'install',
    '-q',
    'pytest==8.3.4',
    'flit_core==3.10.1',
    'freezegun==1.5.1',
  ]);
}
// A finished package is not recorded again; delete its file to repeat it.
const file = (pkg) => path.join(out, `${pkg.name}.jsonl`);
for (const pkg of packages.filter((pkg) => !fs.existsSync(file(pkg)))) {
  const partial = `${file(pkg)}.partial`;
  fs.rmSync(partial, { force: true });
  await record(pkg, (turn) => fs.appendFileSync(partial, `${JSON.stringify(turn)}\n`));
  fs.renameSync(partial, file(pkg));
}
const turns = packages.flatMap((pkg) =>
  fs
    .readFileSync(file(pkg), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line)),
);
const lines = (values) => values.map((value) => `${JSON.stringify(value)}\n`).join('');
fs.writeFileSync(path.join(out, 'turns.jsonl'), lines(turns));
// The same turns as one project with questions, for the benchmark of recall.
const recall = path.join(out, 'recall');
fs.mkdirSync(recall, { recursive: true });
const key = (turn) => `${turn.session}/${turn.turn}`;
fs.writeFileSync(
  path.join(recall, 'sessions.jsonl'),
  lines(
    turns.map((turn) => ({
      session: 'project',
      part: turn.session,
      turn: key(turn),
      role: 'exchange',
      form: 'items',
      text: turn.raw,
    })),
  ),
);
const questions = packages.flatMap((pkg) =>
  turnsOfPackage(pkg).map((turn, at) => ({
    query: turn.question,
    session: 'project',
    evidence: [`${pkg.name}/${at + 1}`],
  })),
);
fs.writeFileSync(path.join(recall, 'sessions.queries.jsonl'), lines(questions));
