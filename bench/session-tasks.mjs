// The tasks of the recorded sessions: 200 turns on five packages, fixed before the levels of turns
// were changed. `record-sessions.mjs` records them.
//
// A target is a symbol of a package, its file, the command that tests it, and a line of it with a
// mistake that the test finds. Each target gives eight turns. A turn names what is at stake: its
// level passes if it still has the name of the file or the symbol.

export const packages = [
  {
    name: 'click',
    from: 'pypi',
    version: '8.1.8',
    build: ['python3', '-m', 'compileall', '-q', 'src'],
    env: { PYTHONPATH: 'src' },
    manifest: 'pyproject.toml',
    targets: [
      {
        symbol: 'IntRange',
        file: 'src/click/types.py',
        test: 'python3 -m pytest -q tests/test_types.py',
        area: 'number ranges',
        old: 'operator.ge if self.max_open else operator.gt',
        new: 'operator.gt if self.max_open else operator.ge',
        crash: ['python3', '-c', 'import click; click.IntRange(0, 5).convert("7", None, None)'],
      },
      {
        symbol: 'make_default_short_help',
        file: 'src/click/utils.py',
        test: 'python3 -m pytest tests/test_utils.py',
        area: 'short help texts',
        old: 'if total_length > max_length:  # too long, truncate',
        new: 'if total_length >= max_length:  # too long, truncate',
        crash: [
          'python3',
          '-c',
          'from click.utils import make_default_short_help; make_default_short_help(None)',
        ],
      },
      {
        symbol: 'split_opt',
        file: 'src/click/parser.py',
        test: 'python3 -m pytest -q tests/test_parser.py tests/test_options.py',
        area: 'parsing of options',
        old: 'if opt[1:2] == first:',
        new: 'if opt[1:2] != first:',
        crash: ['python3', '-c', 'from click.parser import split_opt; split_opt(7)'],
      },
      {
        symbol: 'wrap_text',
        file: 'src/click/formatting.py',
        test: 'python3 -m pytest tests/test_formatting.py',
        area: 'help pages',
        old: 'if not preserve_paragraphs:',
        new: 'if preserve_paragraphs:',
        crash: [
          'python3',
          '-c',
          'from click.formatting import wrap_text; wrap_text(b"x", preserve_paragraphs=True)',
        ],
      },
      {
        symbol: 'UsageError',
        file: 'src/click/exceptions.py',
        test: 'python3 -m pytest -q tests/test_basic.py tests/test_commands.py',
        area: 'exit codes',
        old: '    exit_code = 2',
        new: '    exit_code = 3',
        crash: [
          'python3',
          '-c',
          'import click; raise click.exceptions.UsageError("no such option")',
        ],
      },
    ],
  },
  {
    name: 'itsdangerous',
    from: 'pypi',
    version: '2.2.0',
    build: ['python3', '-m', 'compileall', '-q', 'src'],
    env: { PYTHONPATH: 'src' },
    manifest: 'pyproject.toml',
    targets: [
      {
        symbol: 'base64_decode',
        file: 'src/itsdangerous/encoding.py',
        test: 'python3 -m pytest -q tests/test_itsdangerous/test_encoding.py',
        area: 'encoding of bytes',
        old: 'string += b"=" * (-len(string) % 4)',
        new: 'string += b"=" * (len(string) % 2)',
        crash: ['python3', '-c', 'from itsdangerous import base64_decode; base64_decode(12)'],
      },
      {
        symbol: 'verify_signature',
        file: 'src/itsdangerous/signer.py',
        test: 'python3 -m pytest tests/test_itsdangerous/test_signer.py',
        area: 'signatures',
        old: 'return value + self.sep + self.get_signature(value)',
        new: 'return value + self.get_signature(value)',
        crash: [
          'python3',
          '-c',
          'from itsdangerous import Signer; Signer("k").unsign("no separator here")',
        ],
      },
      {
        symbol: 'TimestampSigner',
        file: 'src/itsdangerous/timed.py',
        test: 'python3 -m pytest -q tests/test_itsdangerous/test_timed.py',
        area: 'expired tokens',
        old: 'if age > max_age:',
        new: 'if age < max_age:',
        crash: [
          'python3',
          '-c',
          'from itsdangerous import TimestampSigner; TimestampSigner("k").unsign(b"a.b.c", ' +
            'max_age=1)',
        ],
      },
      {
        symbol: 'URLSafeSerializerMixin',
        file: 'src/itsdangerous/url_safe.py',
        test: 'python3 -m pytest tests/test_itsdangerous/test_url_safe.py',
        area: 'compressed payloads',
        old: 'if payload.startswith(b"."):',
        new: 'if payload.endswith(b"."):',
        crash: [
          'python3',
          '-c',
          'from itsdangerous import URLSafeSerializer; URLSafeSerializer("k").load_payload(b".xx")',
        ],
      },
      {
        symbol: 'load_payload',
        file: 'src/itsdangerous/serializer.py',
        test: 'python3 -m pytest -q tests/test_itsdangerous/test_serializer.py',
        area: 'serializers',
        old: 'is_text = self.is_text_serializer',
        new: 'is_text = not self.is_text_serializer',
        crash: [
          'python3',
          '-c',
          'from itsdangerous import Serializer; Serializer("k").load_payload(b"{")',
        ],
      },
    ],
  },
  {
    name: 'qs',
    from: 'npm',
    version: '6.13.0',
    // What its tests need; its own list names packages that no registry has.
    install: [
      'tape@5.8.1',
      'side-channel@1.0.6',
      'es-value-fixtures@1.4.2',
      'has-override-mistake@1.0.1',
      'has-property-descriptors@1.0.2',
      'has-symbols@1.0.3',
      'iconv-lite@0.5.1',
      'mock-property@1.0.3',
      'object-inspect@1.13.2',
      'qs-iconv@1.0.4',
      'safer-buffer@2.1.2',
      'has-bigints@1.0.2',
      'for-each@0.3.3',
    ],
    build: ['node', '--check', 'lib/index.js'],
    manifest: 'package.json',
    targets: [
      {
        symbol: 'arrayToObject',
        file: 'lib/utils.js',
        test: 'node_modules/.bin/tape test/utils.js',
        area: 'merging of objects',
        old: "if (typeof source[i] !== 'undefined') {",
        new: "if (typeof source[i] === 'undefined') {",
        crash: [
          'node',
          '-e',
          "require('./lib/utils').merge({}, { get a() { throw new Error('getter') } })",
        ],
      },
      {
        symbol: 'parseValues',
        file: 'lib/parse.js',
        test: 'node_modules/.bin/tape test/parse.js',
        area: 'parsing of query strings',
        old: 'depth: 5,',
        new: 'depth: 4,',
        crash: ['node', '-e', "require('./lib').parse('a=b', { decoder: 1 })"],
      },
      {
        symbol: 'isNonNullishPrimitive',
        file: 'lib/stringify.js',
        test: 'node_modules/.bin/tape test/stringify.js',
        area: 'writing of query strings',
        old: "var prefix = options.addQueryPrefix === true ? '?' : '';",
        new: "var prefix = options.addQueryPrefix === true ? '' : '?';",
        crash: ['node', '-e', "const a = {}; a.a = a; require('./lib').stringify(a)"],
      },
      {
        symbol: 'percentTwenties',
        file: 'lib/formats.js',
        test: 'node_modules/.bin/tape test/stringify.js',
        area: 'the two formats of spaces',
        old: 'var percentTwenties = /%20/g;',
        new: 'var percentTwenties = /%20/;',
        crash: ['node', '-e', "require('./lib').stringify({ a: ' ' }, { format: 'RFC0' })"],
      },
      {
        symbol: 'compactQueue',
        file: 'lib/utils.js',
        test: 'node_modules/.bin/tape test/utils.js',
        area: 'sparse arrays',
        old: 'while (queue.length > 1) {',
        new: 'while (queue.length > 2) {',
        crash: ['node', '-e', "require('./lib/utils').compact(null)"],
      },
    ],
  },
  {
    name: 'semver',
    from: 'npm',
    version: '7.6.3',
    build: ['node', '--check', 'index.js'],
    manifest: 'package.json',
    targets: [
      {
        symbol: 'maxSatisfying',
        file: 'ranges/max-satisfying.js',
        test: 'node --test checks/max.test.js',
        area: 'the best version of a range',
        old: 'maxSV.compare(v) === -1',
        new: 'maxSV.compare(v) === 1',
        check: [
          'checks/max.test.js',
          "const { test } = require('node:test');\n" +
            "const assert = require('node:assert');\n" +
            "const { maxSatisfying } = require('..');\n" +
            "test('takes the highest', () => assert.equal(maxSatisfying(['1.2.3', '1.3.0', " +
            "'2.0.0'], '^1'), '1.3.0'));\n" +
            "test('returns null without a match', () => assert.equal(maxSatisfying(['1.2.3'], " +
            "'^2'), null));\n",
        ],
        crash: ['node', '-e', "require('./ranges/max-satisfying')(null, '1')"],
      },
      {
        symbol: 'diff',
        file: 'functions/diff.js',
        test: 'node --test checks/diff.test.js',
        area: 'kinds of releases',
        old: "const prefix = highHasPre ? 'pre' : ''",
        new: "const prefix = highHasPre ? '' : 'pre'",
        check: [
          'checks/diff.test.js',
          "const { test } = require('node:test');\n" +
            "const assert = require('node:assert');\n" +
            "const { diff } = require('..');\n" +
            "test('minor', () => assert.equal(diff('1.2.3', '1.3.0'), 'minor'));\n" +
            "test('premajor', () => assert.equal(diff('1.2.3', '2.0.0-1'), 'premajor'));\n" +
            "test('same', () => assert.equal(diff('1.0.0', '1.0.0'), null));\n",
        ],
        crash: ['node', '-e', "require('./functions/diff')('x', '1.0.0')"],
      },
      {
        symbol: 'coerce',
        file: 'functions/coerce.js',
        test: 'node --test checks/coerce.test.js',
        area: 'sloppy version strings',
        old: "const minor = match[3] || '0'",
        new: "const minor = match[4] || '0'",
        check: [
          'checks/coerce.test.js',
          "const { test } = require('node:test');\n" +
            "const assert = require('node:assert');\n" +
            "const { coerce } = require('..');\n" +
            "test('adds zeros', () => assert.equal(coerce('v2').version, '2.0.0'));\n" +
            "test('keeps minor and patch', () => assert.equal(coerce('app 3.4.5 x').version, " +
            "'3.4.5'));\n",
        ],
        crash: [
          'node',
          '-e',
          "require('./functions/coerce')('1.2', { rtl: true, get includePrerelease() { throw " +
            "new TypeError('option') } })",
        ],
      },
      {
        symbol: 'cmp',
        file: 'functions/cmp.js',
        test: 'node --test checks/cmp.test.js',
        area: 'comparison operators',
        old: 'return gte(a, b, loose)',
        new: 'return gt(a, b, loose)',
        check: [
          'checks/cmp.test.js',
          "const { test } = require('node:test');\n" +
            "const assert = require('node:assert');\n" +
            "const { cmp } = require('..');\n" +
            "for (const [a, op, b, is] of [['1.0.0', '>=', '1.0.0', true], ['1.0.0', '<', " +
            "'2.0.0', true], ['1.0.0', '!=', '1.0.0', false]]) {\n" +
            '  test(`${a} ${op} ${b}`, () => assert.equal(cmp(a, op, b), is));\n' +
            '}\n',
        ],
        crash: ['node', '-e', "require('./functions/cmp')('1.0.0', '~~', '1.0.0')"],
      },
      {
        symbol: 'inc',
        file: 'functions/inc.js',
        test: 'node --test checks/inc.test.js',
        area: 'version bumps',
        old: ').inc(release, identifier, identifierBase).version',
        new: ').inc(release, identifierBase, identifier).version',
        check: [
          'checks/inc.test.js',
          "const { test } = require('node:test');\n" +
            "const assert = require('node:assert');\n" +
            "const { inc } = require('..');\n" +
            "test('patch', () => assert.equal(inc('1.2.3', 'patch'), '1.2.4'));\n" +
            "test('prerelease', () => assert.equal(inc('1.2.3', 'prerelease', 'beta'), " +
            "'1.2.4-beta.0'));\n",
        ],
        crash: ['node', '-e', "new (require('./classes/semver'))('1.0.0').inc('huge')"],
      },
    ],
  },
  {
    name: 'heck',
    from: 'cargo',
    version: '0.5.0',
    build: ['cargo', 'build', '--offline'],
    manifest: 'Cargo.toml',
    targets: [
      {
        symbol: 'ToKebabCase',
        file: 'src/kebab.rs',
        test: 'cargo test --offline --lib kebab',
        area: 'words with hyphens',
        old: '|f| write!(f, "-")',
        new: '|f| write!(f, "_")',
        crash: [
          'sh',
          '-c',
          'echo "fn main() { let x: u32 = heck::AsKebabCase(5); }" > src/bad.rs && rustc ' +
            '--edition 2021 --crate-type lib src/bad.rs -o /dev/null; code=$?; rm src/bad.rs; ' +
            'exit $code',
        ],
      },
      {
        symbol: 'ToTitleCase',
        file: 'src/title.rs',
        test: 'cargo test --offline --lib title',
        area: 'titles',
        old: '|f| write!(f, " ")',
        new: '|f| write!(f, "  ")',
        crash: ['cargo', 'run', '--offline', '--example', 'titles'],
      },
      {
        symbol: 'ToShoutySnakeCase',
        file: 'src/shouty_snake.rs',
        test: 'cargo test --offline --lib shouty_snake',
        area: 'names of constants',
        old: '|f| write!(f, "_")',
        new: '|f| write!(f, "-")',
        crash: ['cargo', 'test', '--offline', '--lib', 'shouty', '--', '--test-threads', 'many'],
      },
      {
        symbol: 'ToTrainCase',
        file: 'src/train.rs',
        test: 'cargo test --offline --lib train',
        area: 'capitalised words with hyphens',
        old: '|f| write!(f, "-")',
        new: '|f| write!(f, " ")',
        crash: ['cargo', 'check', '--offline', '--features', 'unicode'],
      },
      {
        symbol: 'capitalize',
        file: 'src/lib.rs',
        test: 'cargo test --offline --lib',
        area: 'capital letters',
        old: 'write!(f, "{}", c.to_uppercase())?;\n        if let',
        new: 'write!(f, "{}", c.to_lowercase())?;\n        if let',
        crash: ['cargo', 'test', '--offline', '--test', 'none'],
      },
    ],
  },
];

const base = (path) => path.split('/').pop();
const json = (value) => JSON.stringify(value);
/** A script of the model: runs a command and returns its exit code and output. */
const run = (command) =>
  `const ran = await tools.exec(${json(command)});\n` +
  'return { exitCode: ran.exitCode, output: ran.aggregatedOutput };';
const shell = (command) => ['sh', '-c', command];
const pick = (list, n) => list[n % list.length];

/** The eight turns about one target. `n` is the number of the target and selects the wording. */
export function turnsOf(pkg, target, n) {
  const { symbol, file, area } = target;
  const atStake = [symbol, base(file)];
  const test = shell(target.test);
  const spoil = { path: file, old: target.old, new: target.new };
  const look =
    'const [uses, code] = await Promise.all([\n' +
    `  tools.grepFiles({ pattern: ${json(symbol)}, path: "." }),\n` +
    `  tools.readFile({ path: ${json(file)}, limit: 60 }),\n` +
    ']);\n' +
    'text(code.numbered);\n' +
    'return uses.slice(0, 40).map(use => use.path + ":" + use.line + ": " + use.text);';
  const turns = [];

  turns.push({
    request: pick(
      [
        `Where is ${symbol} defined, and what uses it? I want to know before I change its ` +
          'signature.',
        `hey, can you find ${symbol} for me and tell me who calls it? thanks!!`,
        `I am new to this code. Explain ${symbol} in ${base(file)} and list its callers please.`,
      ],
      n,
    ),
    answers: [
      { script: look },
      {
        text: pick(
          [
            `It is defined in \`${file}\`. The list above has every place that mentions it; ` +
              'the tests call it directly, the rest of the package goes through the public ' +
              'interface.',
            'There is one definition and a handful of callers, most of them tests. Changing ' +
              'the signature is safe as long as the keyword arguments keep their names.',
            `\`${symbol}\` lives in \`${file}\`. It has few callers inside the package, so ` +
              'that a change stays local.\n\n' +
              '- the public interface re-exports it\n' +
              '- the tests cover the normal cases\n' +
              '- nothing depends on its private parts',
          ],
          n,
        ),
      },
    ],
  });

  turns.push({
    request: pick(
      [
        `Run the tests for ${area}. Do they pass?`,
        `Are the tests of ${area} green at the moment?`,
        `Before we start: run everything that covers ${area}, and tell me how long it takes ` +
          'and whether there are failures or warnings that I should know about.',
      ],
      n,
    ),
    answers: [
      target.check
        ? {
            script:
              `await tools.writeFile({ path: ${json(target.check[0])}, content: ` +
              `${json(target.check[1])} });\n` +
              `${run(test)}`,
          }
        : { script: run(test) },
      {
        text: pick(
          [
            'All of them pass.',
            'Yes, everything is green. There is nothing to do.',
            'They pass, without warnings that matter.',
          ],
          n,
        ),
      },
    ],
    atStake: [
      symbol,
      base(file),
      ...target.test
        .split(' ')
        .filter((word) => word.includes('/') || /^[a-z_]+$/.test(word))
        .map(base)
        .filter((word) => !['tape', 'test', 'cargo', 'python', 'node', 'pytest'].includes(word)),
    ],
  });

  turns.push({
    before: spoil,
    request: pick(
      [
        'Since this morning a test fails on my machine. Find out why, and repair it.',
        `Something about ${area} broke with the last change. Please have a look and fix it, ` +
          'but do not touch the tests.',
        'CI is red. What is wrong? Fix it.',
      ],
      n,
    ),
    answers: [
      { script: run(test) },
      {
        script:
          'const found = await tools.grepFiles({ pattern: ' +
          `${json(
            target.new
              .split('\n')[0]
              .trim()
              .replace(/[.*+?^${}()|[\]\\]/g, '\\$&'),
          )}, ` +
          `path: ${json(file)} });\n` +
          `const code = await tools.readFile({ path: ${json(file)}, offset: Math.max(1, ` +
          '(found[0]?.line ?? 1) - 8), limit: 24 });\n' +
          'return code.numbered;',
      },
      {
        script:
          `const edit = await tools.editFile({ path: ${json(file)}, old: ${json(target.new)}, ` +
          `new: ${json(target.old)} });\n` +
          `const ran = await tools.exec(${json(test)});\n` +
          'return { edit, exitCode: ran.exitCode, output: ran.aggregatedOutput };',
      },
      {
        text: pick(
          [
            'The condition was reversed by the last change. I restored it, and the tests pass ' +
              'again.',
            `Fixed. One line in \`${file}\` had been changed by mistake; it is as before now, ` +
              'and the tests pass.',
            'It was a one-line mistake. I corrected the line and ran the same tests again: ' +
              'all of them pass. I did not change anything else, and there is no need for a new ' +
              'test, because the existing ones found it.',
          ],
          n,
        ),
      },
    ],
  });

  turns.push({
    before: { path: file, old: target.old, new: target.new },
    request: pick(
      [
        'What did I change since the last commit?',
        'Show me the current diff and say whether it is safe to commit.',
        'git status please, and undo everything that is not committed',
      ],
      n,
    ),
    answers: [
      { script: run(shell('git status --short; git diff')) },
      { script: run(['git', 'checkout', '--', file]) },
      {
        text: pick(
          [
            'There was one change, and it was wrong. I reverted it; the work tree is clean.',
            `Only \`${base(file)}\` differed from the last commit. The change reverses a ` +
              'condition, so I discarded it.',
            'Done. One file was modified; it is restored.',
          ],
          n,
        ),
      },
    ],
  });

  turns.push({
    request: pick(
      [
        `Add a comment above ${symbol} that says what it is for, and make sure that the ` +
          'package still builds.',
        `Document ${symbol}: one line is enough.`,
        `Please write a short comment for ${symbol} (what it does, not how), then build, then ` +
          'commit with a good message.',
      ],
      n,
    ),
    answers: [
      {
        script:
          'const found = await tools.grepFiles({ pattern: ' +
          `${json(`(class|def|trait|fn|const|var) ${symbol}`)}, path: ${json(file)} });\n` +
          `const code = await tools.readFile({ path: ${json(file)}, offset: found[0]?.line ?? ` +
          '1, limit: 3 });\n' +
          'return code.numbered;',
      },
      {
        script:
          `const file = await tools.readFile({ path: ${json(file)} });\n` +
          'const lines = file.content.split("\\n");\n' +
          'const at = lines.findIndex(line => /(class|def|trait|fn|const|var) ' +
          `${symbol}/.test(line));\n` +
          `const comment = ${json(file.endsWith('.py') ? '# ' : '// ')} + ` +
          `${json(`Central to ${area}.`)};\n` +
          'lines.splice(Math.max(at, 0), 0, (lines[at]?.match(/^\\s*/)?.[0] ?? "") + comment);\n' +
          `await tools.writeFile({ path: ${json(file)}, content: lines.join("\\n") });\n` +
          `const built = await tools.exec(${json(pkg.build)});\n` +
          'const diff = await tools.exec(["git", "diff", "--stat"]);\n' +
          'return { exitCode: built.exitCode, output: built.aggregatedOutput, diff: ' +
          'diff.aggregatedOutput };',
      },
      {
        script: run([
          'git',
          '-c',
          'user.name=a',
          '-c',
          'user.email=a@localhost',
          'commit',
          '-qam',
          `Say what ${symbol} is for`,
        ]),
      },
      {
        text: pick(
          [
            'Done; the build is clean, and the change is committed.',
            `I added the comment in \`${file}\`, built the package and committed it.`,
            'The comment is in place. It says what the code is for in one line, the package ' +
              'builds without warnings, and the commit has a message in the imperative.',
          ],
          n,
        ),
      },
    ],
  });

  turns.push({
    request: pick(
      [
        `This crashes: \`${target.crash.slice(-1)[0].slice(0, 160)}\`. What is the cause?`,
        'I get an error from this command:\n\n' +
          `    ${target.crash.join(' ').slice(0, 200)}\n\n` +
          'Is it a bug of ours or did I use it wrongly?',
        'The command from my notes ends with an error. Run it and explain the trace.',
      ],
      n,
    ),
    answers: [
      { script: run(target.crash) },
      {
        script:
          `const code = await tools.readFile({ path: ${json(file)}, limit: 40 });\n` +
          'return code.numbered;',
      },
      {
        text: pick(
          [
            'It was used wrongly: the argument has the wrong type, and the code does not ' +
              'check it. I would leave it as it is.',
            `This is not a bug. The check in \`${file}\` rejects the input on purpose.`,
            'The trace ends in our code, but the cause is the caller: the value does not have ' +
              'the form that is documented. A better message would help; tell me if I shall add ' +
              'one.',
          ],
          n,
        ),
      },
    ],
  });

  turns.push({
    request:
      'Here is what a user wrote to us:\n\n' +
      `"Hi all, thanks for the great work on ${pkg.name}! We use it in production since three ` +
      'years and had hardly any problem. Last week we upgraded our base image, and now one of ' +
      `our nightly jobs behaves differently: it has to do with ${area}. I tried to read the ` +
      'code but got lost quickly. My colleague thinks that ' +
      `${n % 2 ? `\`${symbol}\`` : 'the central function'} is responsible, because it is the ` +
      'only thing that we call with unusual input. We can not share the job itself, but I can ' +
      'run experiments if you tell me what to try. It is not urgent, our workaround is to pin ' +
      'the old image. Best wishes from rainy Hamburg!"\n\n' +
      'Look at the code in question and draft an answer. Be friendly, do not promise anything.',
    answers: [
      { script: look },
      {
        text:
          'Dear user,\n\n' +
          'thank you for the kind words and the careful report. We looked at the code for ' +
          `${area}${n % 3 ? '' : ` (\`${symbol}\`)`}. It has not changed between the two ` +
          'releases that you mention, so that we suspect another part of the new image. To ' +
          'narrow it down, could you run the job once with the old image and the new package, ' +
          'and once the other way round? Please also print the version of the interpreter in ' +
          'both cases. If the result differs only with the new interpreter, the input is ' +
          'probably decoded differently before it reaches us.\n\n' +
          'We do not know yet whether this is something to change on our side, and will write ' +
          'again when we know more.\n\n' +
          'Kind regards',
      },
    ],
  });

  turns.push({
    before: { path: file, append: file.endsWith('.rs') ? '\nfn broken( {\n' : '\nbroken = = 1\n' },
    request: pick(
      [
        'Does it still build?',
        'Build it and repair what is broken.',
        'The build fails for my colleague. Can you reproduce and fix it?',
      ],
      n,
    ),
    answers: [
      { script: run(file.endsWith('.js') ? ['node', '--check', file] : pkg.build) },
      {
        script:
          'const diff = await tools.exec(["git", "diff"]);\n' +
          `await tools.exec(["git", "checkout", "--", ${json(file)}]);\n` +
          `const built = await tools.exec(${json(pkg.build)});\n` +
          'return { diff: diff.aggregatedOutput, exitCode: built.exitCode, output: ' +
          'built.aggregatedOutput };',
      },
      {
        text: pick(
          [
            'It did not: there was a stray line at the end of a file. I removed it, and the ' +
              'build works.',
            `\`${file}\` ended with a syntax error. I restored the file; the build passes.`,
            'Reproduced and fixed. It was left over from an experiment.',
          ],
          n,
        ),
      },
    ],
  });

  // Questions that a later session could ask, in the order of the turns.
  const questions = [
    `Who calls ${symbol}?`,
    `Which command runs the tests for ${area}?`,
    `What was the mistake that broke ${area}, and how was it fixed?`,
    `When did we discard an uncommitted change to ${base(file)}?`,
    `Which comment did we write above ${symbol}?`,
    `Why did the command about ${symbol} end with an error?`,
    `What did we answer the user who has a different result with ${area} after an upgrade?`,
    `Which syntax error in ${base(file)} broke the build?`,
  ];
  return turns.map((turn, at) => ({ atStake, question: questions[at], ...turn }));
}

/** All turns of a package, in order. */
export const turnsOfPackage = (pkg) =>
  pkg.targets.flatMap((target, n) => turnsOf(pkg, target, n + pkg.name.length));
