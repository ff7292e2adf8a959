//! The command line as a user sees it: output, errors and exit status.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "commands/command_line.rs"]
mod command_line;
#[path = "commands/doctor.rs"]
mod doctor;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A temporary folder with a home and a project.
struct CommandsWorkspace {
    dir: TempDir,
}

impl CommandsWorkspace {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        std::fs::create_dir_all(dir.path().join("project/.selvedge")).unwrap();
        Self { dir }
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .env("SELVEDGE_HOME", self.dir.path().join("home"))
            .env_remove("SELVEDGE_TRUST");
        command.current_dir(self.dir.path().join("project"));
        command
    }

    fn run(&self, args: &[&str]) -> CliOutput {
        CliOutput::of(self.command(args).stdin(Stdio::null()).output().unwrap())
    }

    fn run_with_input(&self, args: &[&str], input: &[u8]) -> CliOutput {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        CliOutput::of(child.wait_with_output().unwrap())
    }
}

#[derive(Debug)]
struct CliOutput {
    status: i32,
    out: String,
    err: String,
}

impl CliOutput {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self {
            status: output.status.code().unwrap(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

#[test]
fn values_go_to_stdout_and_logs_to_stderr() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&[
        "run",
        "-e",
        "console.log('note'); text('shown'); return { a: [1, 'x'] }",
    ]);
    assert_eq!(
        (seen.status, seen.out.as_str()),
        (0, "shown\n{\n  \"a\": [\n    1,\n    \"x\"\n  ]\n}\n")
    );
    assert_eq!(seen.err, "note\n");
    let seen = workspace.run(&["run", "-e", "return 'raw \"string\"'"]);
    assert_eq!(
        (seen.out.as_str(), seen.err.as_str()),
        ("raw \"string\"\n", "")
    );
    assert_eq!(workspace.run(&["run", "-e", "1"]).out, "");
}

#[test]
fn scripts_come_from_a_file_the_command_line_or_standard_input() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/a.ts", "\u{feff}const n: number = 2; return n");
    assert_eq!(workspace.run(&["run", "a.ts"]).out, "2\n");
    assert_eq!(
        workspace.run_with_input(&["run", "-"], b"return 3").out,
        "3\n"
    );
    assert_eq!(
        workspace
            .run(&[
                "run",
                "-C",
                ".",
                "-e",
                "return context.workingDirectory.endsWith('project')"
            ])
            .out,
        "true\n"
    );
}

#[test]
fn exit_status_distinguishes_success_failure_and_not_started() {
    let workspace = CommandsWorkspace::new();
    for (args, status) in [
        (&["run", "-e", "return 1"][..], 0),
        (&["run", "-e", "throw 1"], 1),
        (&["run", "--timeout", "50ms", "-e", "for (;;) {}"], 1),
        (&["run", "-e", "syntax error"], 2),
        (&["run", "-e", "await tools.nothing()"], 2),
        (&["run", "--mode", "disabled", "-e", "return 1"], 2),
        (&["run", "--dry-run", "-e", "return 1"], 0),
        (&["run", "--dry-run", "-e", "await tools.nothing()"], 2),
        (&["run", "missing.ts"], 2),
        (&["run"], 2),
        (&["run", "--timeout", "soon", "-e", "1"], 2),
        (&["run", "-C", "nowhere", "-e", "1"], 2),
        (&["check", "missing.ts"], 2),
        (&["runs", "list", "--tool", "nope"], 0),
        (&["nonsense"], 2),
    ] {
        assert_eq!(workspace.run(args).status, status, "{args:?}");
    }
    let hint = workspace.run(&["check", "missing.ts"]).err;
    assert!(hint.ends_with("\nhint: pass a file\n"), "{hint}");
    let hint = workspace.run(&["mcp", "login", "x"]).err;
    let expected = "\nhint: run `selvedge mcp add NAME -- PROGRAM` to add one\n";
    assert!(hint.ends_with(expected), "{hint}");
    let note = workspace.run(&["runs", "list", "--tool", "nope"]).err;
    assert_eq!(note, "note: no runs match\n");
}

#[test]
fn errors_have_a_message_an_excerpt_and_a_hint() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/bad.ts", "const a = 1;\nreturn fetch('x')\n");
    insta::assert_snapshot!(workspace.run(&["run", "bad.ts"]).err, @r"
    error: ScriptRuntimeError: ReferenceError: fetch is not defined
     --> bad.ts:2:8
      |
    2 | return fetch('x')
      |        ^
    hint: scripts have no network: use a tool, see help()
    ");
    insta::assert_snapshot!(workspace.run(&["run", "-e", "import fs from 'fs'"]).err, @r"
    error: ScriptRejectedError: `import` cannot be used in a script
     --> <eval>:1:1
      |
    1 | import fs from 'fs'
      | ^
    hint: everything a script can use is already defined: see help()
    ");
    insta::assert_snapshot!(workspace.run(&["run", "missing.ts"]).err, @r"
    error: cannot read missing.ts: No such file or directory (os error 2)
    hint: pass a file, or -e CODE
    ");
}

#[test]
fn invalid_utf8_and_large_scripts_are_rejected() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/latin1.ts", b"return '\xfc'");
    let seen = workspace.run(&["run", "--json", "latin1.ts"]);
    assert_eq!(
        (
            seen.status,
            &seen.json()["error"]["code"],
            &seen.json()["error"]["column"]
        ),
        (2, &json!("ScriptRejectedError"), &json!(9))
    );
    workspace.write(
        "project/fits.ts",
        format!("return 1 //{}", "x".repeat(20_480 - 11)),
    );
    assert_eq!(workspace.run(&["run", "fits.ts"]).status, 0);
    workspace.write(
        "project/large.ts",
        format!("return 1 //{}", "x".repeat(20_480 - 10)),
    );
    let seen = workspace.run(&["run", "large.ts"]);
    assert_eq!(seen.status, 2);
    assert!(
        seen.err
            .contains("the script has 20481 bytes, the limit is 20480"),
        "{}",
        seen.err
    );
}

#[test]
fn json_output_is_one_item_on_one_line() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&[
        "run",
        "--json",
        "--seed",
        "7",
        "-e",
        "return Math.random() < 1",
    ]);
    assert_eq!(seen.out.lines().count(), 1);
    let item = seen.json();
    assert_eq!(
        (&item["type"], &item["status"], &item["output_json"]),
        (
            &json!("script_tool_call_output"),
            &json!("completed"),
            &json!("true")
        )
    );
    assert_eq!(item["metadata"]["random_seed"], json!("7"));
    let a = workspace
        .run(&["run", "--seed", "7", "-e", "return Math.random()"])
        .out;
    assert_eq!(
        a,
        workspace
            .run(&["run", "--seed", "7", "-e", "return Math.random()"])
            .out
    );
    let failed = workspace.run(&["run", "--json", "-e", "null.x"]);
    assert_eq!(
        (
            failed.status,
            &failed.json()["status"],
            &failed.json()["error"]["line"]
        ),
        (1, &json!("error"), &json!(1))
    );
    assert_eq!(failed.err, "");
}

#[test]
fn flags_override_configured_limits() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "home/config.toml",
        "model = 'x'\n[script_harness.limits]\nmemory_mb = 8\ntimeout_ms = 200\n",
    );
    let fill = "const a = []; for (;;) a.push('x'.repeat(1e5))";
    let seen = workspace.run(&["run", "-q", "--timeout", "20s", "-e", fill]);
    assert!(
        seen.err
            .contains("ScriptMemoryError: the script exceeded its memory limit of 8 MB\n"),
        "{seen:?}"
    );
    let code = |seen: &CliOutput| seen.json()["error"]["code"].as_str().unwrap().to_owned();
    // Long enough to fill the memory on a busy machine.
    assert_eq!(
        code(&workspace.run(&["run", "--json", "--timeout", "20s", "-e", fill])),
        "ScriptMemoryError"
    );
    assert_eq!(
        code(&workspace.run(&["run", "--json", "-e", "for (;;) {}"])),
        "ScriptTimeoutError"
    );
    let shown = "const s = context.sandbox; return [s.memoryMb, s.timeoutMs, s.remainingToolBudget, s.maxConcurrentToolCalls].join()";
    assert_eq!(workspace.run(&["run", "-e", shown]).out, "8,200,32,4\n");
    let flags = [
        "run",
        "--memory",
        "64MB",
        "--timeout",
        "2s",
        "--max-calls",
        "5",
        "--max-concurrent",
        "2",
        "-e",
        shown,
    ];
    assert_eq!(workspace.run(&flags).out, "64,2000,5,2\n");
    // The last value of a repeated flag is used.
    let repeated = [&flags[..], &["--timeout", "3s", "--memory", "32MB"]].concat();
    assert_eq!(workspace.run(&repeated).out, "32,3000,5,2\n");
}

#[test]
fn a_command_that_failed_is_not_marked_as_done() {
    let workspace = CommandsWorkspace::new();
    let source = "await tools.exec({ command: ['false'] });
        await tools.exec({ command: ['sleep', '60'], timeoutMs: 100 });
        await tools.exec({ command: ['true'] });
        await tools.execCommand({ cmd: 'exit 3' });
        const { sessionId } = await tools.execCommand({ cmd: 'read x; exit $x', yieldTimeMs: 10 });
        await tools.writeStdin({ sessionId, chars: '5\\n', yieldTimeMs: 30000 })";
    let seen = workspace.run(&["run", "-e", source]);
    let lines: Vec<&str> = seen.err.lines().collect();
    assert_eq!(lines[0], "✗ exec false  exit 1", "{seen:?}");
    assert!(
        lines[1].starts_with("✗ exec sleep 60")
            && lines[1].ends_with("  stopped at its time limit of 100 ms"),
        "{seen:?}"
    );
    assert!(lines[2].starts_with("✓ exec true"), "{seen:?}");
    assert_eq!(lines[3], "✗ exec_command exit 3  exit 3", "{seen:?}");
    assert!(lines[4].starts_with("✓ exec_command read x"), "{seen:?}");
    assert!(
        lines[5].starts_with("✗ write_stdin") && lines[5].ends_with("  exit 5"),
        "{seen:?}"
    );
}

#[test]
fn the_message_of_a_failed_call_is_printed_once() {
    let workspace = CommandsWorkspace::new();
    let read = "await tools.readFile({ path: 'gone' })";
    let seen = workspace.run(&["run", "-e", read]);
    assert!(
        seen.err.starts_with("✗ read_file gone  failed\n"),
        "{seen:?}"
    );
    assert_eq!(
        seen.err.matches("gone does not exist").count(),
        1,
        "{seen:?}"
    );
    // A failure that the script handles is only in the list of calls.
    let handled = format!("try {{ {read} }} catch {{}}; {read}.catch(() => 1); return 2");
    let seen = workspace.run(&["run", "-e", &handled]);
    let line = "✗ read_file gone  failed: gone does not exist\n";
    assert_eq!(seen.err, line.repeat(2), "{seen:?}");
}

#[test]
fn errors_about_limits_and_approval_name_the_flag_to_pass() {
    let workspace = CommandsWorkspace::new();
    let fill = "const a = []; for (;;) a.push('x'.repeat(1e5))";
    let write = "for (const path of ['a', 'b']) await tools.writeFile({ path, content: '' })";
    let commands = "for (;;) await tools.exec({ command: ['true'] })";
    let remove = "await tools.exec({ command: ['rm', '-rf', 'x'] })";
    for (args, code, hint) in [
        (
            &["--timeout", "50ms"][..],
            "for (;;) {}",
            "--timeout 100ms\n",
        ),
        (
            &["--memory", "8MB", "--timeout", "20s"],
            fill,
            "--memory 16MB\n",
        ),
        (&["--max-calls", "1"], commands, "--max-calls 2\n"),
        (
            &["--max-file-calls", "1"],
            write,
            "--max-file-calls 2 --resume scr_",
        ),
        (
            &["--approval", "never"],
            remove,
            "--approval on-request --suspend to approve it later\n",
        ),
        (&[], remove, "--suspend to approve it later\n"),
        (
            &["--sandbox", "read-only"],
            "await tools.writeFile({ path: 'c', content: '' })",
            "--sandbox workspace-write\n",
        ),
    ] {
        let seen = workspace.run(&[&["run", "-q"], args, &["-e", code]].concat());
        assert_eq!(seen.status, 1, "{seen:?}");
        assert!(
            seen.err.contains(&format!("\nhint: pass {hint}")),
            "{seen:?}"
        );
        assert_eq!(seen.err.matches("hint: ").count(), 1, "{seen:?}");
    }
    // A new run would repeat the cancelled call. A resumed run fails until the script decides it.
    let sleep = "await tools.exec({ command: ['sleep', '60'] })";
    workspace.write(
        "home/config.toml",
        "[script_harness.limits]\nmax_timeout_ms = 1000\n",
    );
    let seen = workspace.run(&["run", "-q", "-e", sleep]);
    let (_, run) = seen
        .err
        .split_once("\nhint: pass --timeout 2s --resume ")
        .unwrap_or_else(|| panic!("{seen:?}"));
    let (run, rest) = run.split_once(';').unwrap();
    let decide = format!(
        " the script must first decide the calls whose outcome is unknown, which `selvedge runs \
         show {run}` lists\n"
    );
    assert_eq!(rest, decide);
    let shown = workspace.run(&["runs", "show", run]);
    let unknown = format!("the outcome of {run}/tool_1 (exec) is unknown");
    assert!(shown.out.contains(&unknown), "{shown:?}");
    let seen = workspace.run(&["run", "-q", "--resume", run, "-e", sleep]);
    assert!(
        seen.err.contains("OutcomeUnknownError") && seen.err.matches("hint: ").count() == 1,
        "{seen:?}"
    );
    let lines = format!("`resume.repeat(\"{run}/tool_1\")` (it had no effect");
    assert!(seen.err.contains(&lines), "{seen:?}");
    let code = "// @exec: {\"timeout_ms\": 50}\nfor (;;) {}";
    let seen = workspace.run(&["run", "-q", "-e", code]);
    assert!(
        seen.err
            .contains("\nhint: raise \"timeout_ms\" in the `// @exec:` line of the script\n"),
        "{seen:?}"
    );
    let code = "// @exec: {\"timeout_ms\": 500}\nawait tools.writeFile({path: 'a', content: 'x'});
        for (;;) {}";
    let seen = workspace.run(&["run", "-q", "-e", code]);
    assert!(
        seen.err
            .contains("line of the script and pass --resume scr_"),
        "{seen:?}"
    );
}

#[test]
fn invalid_configuration_names_file_and_line() {
    let workspace = CommandsWorkspace::new();
    let file = workspace
        .dir
        .path()
        .join("home/config.toml")
        .display()
        .to_string();
    workspace.write("home/config.toml", "[script_harness]\nmood = 'good'\n");
    let seen = workspace.run(&["run", "-e", "return 1"]);
    let warning =
        format!("warning: {file}:2: unknown key `script_harness.mood`; did you mean `mode`?\n");
    assert_eq!(
        (seen.status, seen.out.as_str(), seen.err),
        (0, "1\n", warning)
    );
    workspace.write(
        "home/config.toml",
        "model = 3\n[script_harness.limits]\ntimeout_ms = '30s'\n",
    );
    for command in [
        &["run", "-e", "1"][..],
        &["runs", "list"],
        &["memory", "stats"],
    ] {
        let seen = workspace.run(command);
        let errors = format!(
            "error: {file}:1: model must be a string, got 3\n\
             error: {file}:3: script_harness.limits.timeout_ms must be a whole number of milliseconds, got '30s'\n\
             hint: correct line 3 of {file}\n"
        );
        assert_eq!((seen.status, seen.err), (2, errors), "{command:?}");
    }
    workspace.write("home/config.toml", "model = \"x\"\nmodel = \n");
    let seen = workspace.run(&["run", "-e", "1"]);
    assert!(
        seen.err.ends_with(&format!(
            ":2: the value after `=` is missing\nhint: correct line 2 of {file}\n"
        )),
        "{seen:?}"
    );
    workspace.write("home/config.toml", "model_provider = \"nosuch\"\n");
    let seen = workspace.run(&["doctor"]);
    assert!(
        seen.out
            .contains(":1: there is no provider `nosuch`; use one of "),
        "{seen:?}"
    );
}

#[test]
fn unknown_tools_in_the_configuration_are_named_with_their_line() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "home/config.toml",
        "[tool_packs.mine]\ntools = ['red_file', 'exec', 'mcp.x.*', 'mcp.y.z']\n\
         [script_harness.limits.tool_timeouts_ms]\nlst_dir = 5\nlistDir = 6\n",
    );
    let seen = workspace.run(&["run", "-q", "-e", "return 1"]);
    let lines: Vec<&str> = seen.err.lines().collect();
    assert_eq!((seen.status, lines.len()), (0, 2), "{seen:?}");
    let read = "config.toml:2: there is no tool `red_file`; did you mean `read_file`?";
    let list = "config.toml:4: there is no tool `lst_dir`; did you mean `list_dir`?";
    assert!(
        lines[0].ends_with(read) && lines[1].ends_with(list),
        "{seen:?}"
    );
}

#[test]
fn a_limit_in_the_first_line_of_a_script_names_its_flag() {
    let code = "// @exec: {\"memory_mb\": 4}\nreturn 1";
    let seen = CommandsWorkspace::new().run(&["run", "-q", "-e", code]);
    assert!(
        seen.err.contains("unknown field `memory_mb`")
            && seen
                .err
                .ends_with("hint: remove `memory_mb`, and pass --memory 4MB to `selvedge`\n"),
        "{seen:?}"
    );
}

#[test]
fn a_binary_file_and_a_time_limit_of_zero_are_refused() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/program", "\u{7f}ELF\0");
    let seen = workspace.run(&["run", "program"]);
    assert_eq!(
        (seen.status, seen.err.as_str()),
        (
            2,
            "error: program is a binary file, not a script\n\
             hint: pass a TypeScript file, or -e CODE\n"
        )
    );
    let seen = workspace.run(&["run", "--timeout", "0", "-e", "return 1"]);
    assert!(
        seen.status == 2 && seen.err.contains("`0` is out of range; use 1ms or more"),
        "{seen:?}"
    );
}

#[test]
fn doctor_and_config_work_with_an_invalid_project_configuration() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "home/config.toml",
        "[script_harness.limits]\nmemory_mb = 64\n",
    );
    workspace.write(
        "project/.selvedge/config.toml",
        "modle = 'x'\n[shell_environment_policy]\nexclude = ['[a']\n",
    );
    let seen = workspace.run(&["doctor", "--trust", "--json"]);
    let findings = seen.json();
    let findings = findings.as_array().unwrap();
    let about = |what: &str| {
        let about = findings.iter().filter(|finding| finding["what"] == what);
        about
            .map(|finding| (finding["ok"] == true, finding["details"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    let configuration = about("configuration");
    assert!(
        configuration[0].0
            && configuration[0]
                .1
                .contains("config.toml:1: unknown key `modle`; did you mean `model`?"),
        "{configuration:?}"
    );
    assert!(
        !configuration[1].0
            && configuration[1]
                .1
                .contains("config.toml:3: invalid glob \"[a\""),
        "{configuration:?}"
    );
    assert!(about("sandbox")[0].0 && about("realm")[0].0, "{findings:?}");
    let statuses = findings
        .iter()
        .filter(|finding| finding["what"] == "configuration");
    let statuses: Vec<_> = statuses.map(|finding| &finding["status"]).collect();
    assert_eq!(statuses, [&json!("warning"), &json!("failed")]);
    assert_eq!(seen.status, 1);
    // An unreadable file does not stop doctor either.
    std::fs::create_dir_all(workspace.dir.path().join("project/.mcp.json/folder")).unwrap();
    let seen = workspace.run(&["doctor", "--json"]);
    assert!(
        seen.out.contains("deadline")
            && seen
                .out
                .contains(".mcp.json: the file is not used: it is a folder, not a regular file"),
        "{}",
        seen.out
    );
    assert_eq!(workspace.run(&["config", "schema"]).status, 0);
    let paths = workspace.run(&["config", "path"]).out;
    assert_eq!(paths.lines().count(), 2);
    assert!(
        paths.contains("home/config.toml\n") && paths.contains("project/.selvedge/config.toml\n"),
        "{paths}"
    );
}

#[test]
fn config_schema_prints_a_valid_json_schema() {
    let seen = CommandsWorkspace::new().run(&["config", "schema"]);
    let schema = seen.json();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    let timeout =
        &schema["properties"]["script_harness"]["properties"]["limits"]["properties"]["timeout_ms"];
    assert_eq!(
        (&timeout["type"], &timeout["default"]),
        (&json!("integer"), &json!(30_000))
    );
    assert!(
        timeout["description"]
            .as_str()
            .unwrap()
            .starts_with("Time limit of a script")
    );
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
}

#[test]
fn a_projects_configuration_is_used_only_if_trusted() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "project/.selvedge/config.toml",
        "[script_harness.limits]\nmemory_mb = 12\n",
    );
    let memory = ["run", "-q", "-e", "return context.sandbox.memoryMb"];
    let seen = workspace.run(&memory);
    assert_eq!(seen.out, "96\n");
    assert!(seen.err.contains("not trusted"), "{}", seen.err);
    assert_eq!(
        workspace.run(&[&memory[..], &["--trust"]].concat()).out,
        "12\n"
    );
    // The decision is saved, and nothing is printed.
    let seen = workspace.run(&memory);
    assert_eq!((seen.out.as_str(), seen.err.as_str()), ("12\n", ""));
}

#[test]
fn check_reports_without_running_the_script() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/a.ts", "return 1");
    assert_eq!(
        workspace.run(&["check", "a.ts"]).out,
        "ok: 0 tool calls found\n"
    );
    workspace.write("project/b.ts", "const a = {\nreturn a");
    let seen = workspace.run(&["check", "--json", "b.ts"]);
    assert_eq!(
        (
            seen.status,
            &seen.json()["valid"],
            &seen.json()["errors"][0]["line"]
        ),
        (2, &json!(false), &json!(2))
    );
}

#[test]
fn check_prints_the_class_of_a_command() {
    let workspace = CommandsWorkspace::new();
    for (argv, class, reason) in [
        (&["git", "status"][..], "read-only", ""),
        (&["bash", "-lc", "ls | wc -l"], "read-only", ""),
        (
            &["cargo", "test"],
            "unknown",
            "`cargo` is not known to be read-only; ",
        ),
        (
            &["bash", "-lc", "ls > out.txt"],
            "unknown",
            "writes to a file; ",
        ),
        (&["rm", "-rf", "x"], "dangerous", "deletes files by force; "),
        (
            &["bash", "-lc", "curl x | sh"],
            "dangerous",
            "runs downloaded code; ",
        ),
        (
            &["--help"],
            "unknown",
            "`--help` is not known to be read-only; ",
        ),
    ] {
        let consequence = match class {
            "dangerous" => "needs approval",
            _ => "runs without approval",
        };
        let text = format!(
            "{class}: {reason}{consequence} under `on-request`, confined to `workspace-write`"
        );
        let seen = workspace.run(&[&["check", "--command", "--"], argv].concat());
        assert_eq!(
            (seen.status, seen.out.as_str(), seen.err.as_str()),
            (0, &*format!("{text}\n"), ""),
            "{argv:?}"
        );
        let seen = workspace.run(&[&["check", "--command", "--json", "--"], argv].concat());
        assert_eq!(seen.status, 0);
        let report = seen.json();
        assert_eq!(
            (
                &report["class"],
                &report["auto_approve"],
                &report["dangerous"]
            ),
            (
                &json!(class),
                &json!(class == "read-only"),
                &json!(class == "dangerous")
            ),
            "{argv:?}"
        );
    }
    let report = workspace
        .run(&[
            "check",
            "--command",
            "--json",
            "--",
            "bash",
            "-lc",
            "ls && rm -rf 'a b'",
        ])
        .json();
    assert_eq!(report["reason"], "deletes files by force");
    // The answer is the one of `run` with the same flags.
    for (flags, argv, verdict) in [
        (
            &["--approval", "untrusted"][..],
            &["cargo", "test"][..],
            "needs-approval",
        ),
        (&["--approval", "untrusted"], &["ls"], "runs"),
        (&["--approval", "never"], &["cargo", "test"], "runs"),
        (&["--approval", "never"], &["rm", "-rf", "x"], "denied"),
        (
            &["--sandbox", "danger-full-access"],
            &["cargo", "test"],
            "runs",
        ),
        (&["--sandbox", "read-only"], &["cargo", "test"], "runs"),
    ] {
        let checked = [&["check", "--command", "--json"], flags, &["--"], argv].concat();
        let report = workspace.run(&checked).json();
        assert_eq!(report["verdict"], verdict, "{flags:?} {argv:?}: {report}");
        // Without a terminal, what needs approval is denied.
        let script = format!("await tools.exec({{ command: {} }})", json!(argv));
        let ran = workspace.run(&[&["run", "--json"], flags, &["-e", &script]].concat());
        let is_denied = ran.json()["error"]["code"] == "ApprovalDeniedError";
        assert_eq!(is_denied, verdict != "runs", "{flags:?} {argv:?}: {ran:?}");
    }
    for (mode, place) in [
        ("read-only", "confined to `read-only`"),
        ("workspace-write", "confined to `workspace-write`"),
        ("danger-full-access", "not confined"),
    ] {
        let check = |more: &[&str]| {
            let flags = ["check", "--command", "--sandbox", mode];
            workspace.run(&[&flags[..], more, &["--", "cargo", "test"]].concat())
        };
        assert_eq!(check(&["--json"]).json()["sandbox_mode"], mode);
        let line = format!(
            "unknown: `cargo` is not known to be read-only; runs without approval under \
             `on-request`, {place}\n"
        );
        assert_eq!(check(&[]).out, line);
    }
    assert_eq!(report["commands"], json!([["ls"], ["rm", "-rf", "a b"]]));
    for usage in [
        &["check", "--command"][..],
        &["check", "--command", "--"],
        &["check", "--", "ls"],
        &["check"],
    ] {
        assert_eq!(workspace.run(usage).status, 2, "{usage:?}");
    }
}

#[test]
fn doctor_tests_the_sandbox() {
    let seen = CommandsWorkspace::new().run(&["doctor", "--json"]);
    assert_eq!(seen.status, 0, "{seen:?}");
    let findings = seen.json();
    for what in ["sandbox", "realm", "deadline", "folder", "keyring", "git"] {
        let is_ok = |finding: &Value| finding["what"] == what && finding["ok"] == true;
        assert!(findings.as_array().unwrap().iter().any(is_ok), "{what}");
    }
}

#[test]
fn doctor_marks_warnings_and_a_folder_that_is_not_writable() {
    let workspace = CommandsWorkspace::new();
    workspace.write("home/config.toml", "[script_harness]\nmood = 'good'\n");
    let seen = workspace.run(&["doctor"]);
    assert!(
        seen.status == 0 && seen.out.contains("\n! configuration  warning: "),
        "{seen:?}"
    );
    let file = workspace.dir.path().join("home/config.toml");
    let output = workspace
        .command(&["doctor"])
        .env("SELVEDGE_HOME", file.join("below"))
        .output();
    let seen = CliOutput::of(output.unwrap());
    assert!(
        seen.status == 1 && seen.out.contains("\n✗ folder         cannot write to "),
        "{seen:?}"
    );
}

#[test]
fn diff_prints_the_changes_of_a_script() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/.gitignore", "*.log\n");
    workspace.write("project/a.txt", "one\r\ntwo\n");
    workspace.write("project/script.ts", "await tools.writeFile({ path: 'a.txt', content: 'one\\r\\nTWO\\n' });\nawait tools.writeFile({ path: 'new file.txt', content: 'x' });\nreturn 'done'");
    let diff = "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\n+TWO\n\
                diff --git a/new file.txt b/new file.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new file.txt\t\n\
                @@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n";
    let seen = workspace.run(&["run", "script.ts", "--quiet", "--diff"]);
    assert_eq!(
        (seen.status, seen.out.as_str(), seen.err.as_str()),
        (0, "done\n", diff)
    );
    // The second run changes nothing.
    let seen = workspace.run(&["run", "script.ts", "--quiet", "--diff"]);
    assert_eq!((seen.status, seen.err.as_str()), (0, ""));
    // With --json, and of a script that failed.
    let failing = "await tools.writeFile({ path: 'a.txt', content: '' }); null.x";
    let seen = workspace.run(&["run", "--json", "--diff", "-e", failing]);
    assert_eq!(
        (seen.status, &seen.json()["status"], &seen.json()["diff"]),
        (1, &json!("error"), &Value::Null)
    );
    assert!(
        seen.err.starts_with("diff --git a/a.txt b/a.txt\n")
            && seen.err.ends_with("@@ -1,2 +0,0 @@\n-one\r\n-TWO\n"),
        "{}",
        seen.err
    );
    workspace.write("project/large.txt", "x".repeat(2_000_000));
    let shrink = "await tools.writeFile({ path: 'large.txt', content: '' })";
    let seen = workspace.run(&["run", "--diff", "-q", "-e", shrink]);
    assert!(
        seen.err
            .ends_with("note: large.txt changed but is not shown: larger than 1 MB\n"),
        "{}",
        seen.err
    );
    assert_eq!(
        workspace
            .run(&[
                "run",
                "-q",
                "-e",
                "return await tools.writeFile({ path: 'b.txt', content: 'b' })"
            ])
            .err,
        ""
    );
}

#[test]
fn an_interrupt_cancels_the_script() {
    let workspace = CommandsWorkspace::new();
    let script = "await tools.writeFile({ path: 'ready', content: '' }); await new Promise(r => setTimeout(r, 60_000))";
    let mut child = workspace
        .command(&["run", "--timeout", "90s", "--json", "-e", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready = workspace.dir.path().join("project/ready");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !ready.exists() {
        assert!(std::time::Instant::now() < end, "the script never ran");
        std::thread::yield_now();
    }
    Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    let mut out = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(out.contains("ScriptCancelledError"), "{out}");
}

#[test]
fn packs_select_the_offered_tools() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "home/config.toml",
        "tool_pack = \"mine\"\n[tool_packs.mine]\nextends = [\"file-ops\"]\ntools = [\"exec\"]\nwithout = [\"listDir\"]\n",
    );
    let names = |seen: CliOutput| -> Vec<String> {
        seen.json()
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let mine = [
        "apply_patch",
        "edit_file",
        "exec",
        "file_search",
        "grep_files",
        "read_file",
    ];
    assert_eq!(names(workspace.run(&["tools", "--json"])), mine);
    let standard = ["exec", "list_dir", "read_file", "update_plan"];
    assert_eq!(
        names(workspace.run(&["tools", "--json", "--pack", "anthropic-standard"])),
        standard
    );
    assert!(names(workspace.run(&["tools", "--json", "--pack", "all"])).len() > 10);
    let seen = workspace.run(&["run", "--pack", "fileops", "-e", "return 1"]);
    assert_eq!(seen.status, 2);
    assert_eq!(
        seen.err,
        "error: unknown tool pack `fileops`\nhint: did you mean `file-ops`?\n"
    );
}

#[test]
fn arguments_after_the_dashes_reach_the_script() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&[
        "run",
        "-e",
        "return context.args",
        "--",
        "a b",
        "--flag",
        "ü",
    ]);
    assert_eq!(seen.json(), json!(["a b", "--flag", "ü"]));
    assert_eq!(
        workspace.run(&["run", "-e", "return context.args"]).json(),
        json!([])
    );
}

#[test]
fn commands_get_the_configured_environment_without_secrets() {
    let workspace = CommandsWorkspace::new();
    let config = [
        "[shell_environment_policy]\nexclude = [\"HIDE_*\"]\nset = { EXTRA = \"set\" }",
        "[mcp_servers.x]\nurl = 'http://127.0.0.1:1/mcp'\nenabled = false\nbearer_token_env_var = 'BEARER_OF_X'",
        "[mcp_servers.x.env_http_headers]\nX-Pass = 'PASS_OF_X'\n",
    ];
    workspace.write("home/config.toml", config.join("\n"));
    let project = json!({"mcpServers": {"y": {
        "url": "http://127.0.0.1:1/mcp", "disabled": true, "headers": {"Authorization": "Bearer ${PASS_OF_Y:-none}"}
    }}});
    workspace.write("project/.mcp.json", project.to_string());
    let output = workspace
        .command(&[
            "run",
            "-q",
            "--trust",
            "-e",
            "return (await tools.exec({ command: ['env'] })).stdout",
        ])
        .env("ANTHROPIC_API_KEY", "hunter2")
        .env("HIDE_ME", "hunter2")
        .env("BEARER_OF_X", "hunter2")
        .env("PASS_OF_X", "hunter2")
        .env("PASS_OF_Y", "hunter2")
        .env("PLAIN", "seen")
        .output()
        .unwrap();
    let seen = CliOutput::of(output);
    assert!(!seen.out.contains("hunter2"), "{}", seen.out);
    assert!(
        seen.out.contains("PLAIN=seen\n") && seen.out.contains("EXTRA=set\n"),
        "{}",
        seen.out
    );
}

#[test]
fn the_default_home_stays_private_if_another_is_set() {
    let workspace = CommandsWorkspace::new();
    std::fs::create_dir_all(workspace.dir.path().join("user/.selvedge")).unwrap();
    workspace.write("user/.selvedge/journal.db", "hunter2");
    workspace.write("user/plain", "seen");
    let script = "const [file, plain] = context.args;
        const words = [await tools.exec({ command: ['cat', file, plain] }).then(r => r.stdout)];
        for (const path of [file, plain]) words.push(await tools.readFile({ path }).then(r => r.text, e => e.message));
        return words";
    let path = |name: &str| workspace.dir.path().join(name).display().to_string();
    let args = [
        "run",
        "-q",
        "-e",
        script,
        "--",
        &path("user/.selvedge/journal.db"),
        &path("user/plain"),
    ];
    let seen = CliOutput::of(
        workspace
            .command(&args)
            .env("HOME", workspace.dir.path().join("user"))
            .output()
            .unwrap(),
    );
    assert!(
        !seen.out.contains("hunter2") && seen.out.contains("holds secrets"),
        "{seen:?}"
    );
    assert_eq!(
        (&seen.json()[0], &seen.json()[2]),
        (&json!("seen"), &json!("seen")),
        "{seen:?}"
    );
}

#[test]
fn scripts_cannot_read_the_environment_of_the_process() {
    let workspace = CommandsWorkspace::new();
    let script = "const words = [];
        for (const path of ['/proc/self/environ', '/proc/1/environ', '/proc/thread-self/environ', '/dev/fd/../environ']) {
            words.push(await tools.saveToFc({ path }).then(k => tools.fetchFromFc({ fileKey: k.fileKey }), e => e.message));
            words.push(await tools.readFile({ path }).then(r => r.text, e => e.message));
        }
        return JSON.stringify(words)";
    for sandbox in ["read-only", "workspace-write", "danger-full-access"] {
        let args = [
            "run",
            "-q",
            "--sandbox",
            sandbox,
            "--approval",
            "untrusted",
            "-e",
            script,
        ];
        // The first variable is longer than the part of a file that some checks read.
        let seen = CliOutput::of(
            workspace
                .command(&args)
                .env("A", "a".repeat(20_000))
                .env("OPENAI_API_KEY", "hunter2")
                .output()
                .unwrap(),
        );
        assert!(
            seen.status == 0
                && !seen.out.contains("hunter2")
                && seen
                    .out
                    .contains("cannot be accessed: it exposes processes and their environment"),
            "{seen:?}"
        );
    }
}

#[test]
fn configured_rules_replace_approval() {
    let workspace = CommandsWorkspace::new();
    let script = [
        "run",
        "-q",
        "--approval",
        "untrusted",
        "-e",
        "return (await tools.exec({ command: ['touch', 'made'] })).exitCode",
    ];
    let seen = workspace.run(&script);
    assert!(
        seen.status == 1 && seen.err.contains("there is no terminal to ask on"),
        "{seen:?}"
    );
    workspace.write("home/config.toml", "allow_commands = [[\"touch\"]]\n");
    assert_eq!(workspace.run(&script).json(), json!(0));
    // Saved rules that cannot be read are an error.
    workspace.write("home/rules.toml", "allow = \"everything\"\n");
    let seen = workspace.run(&script);
    assert!(
        seen.status == 2 && seen.err.contains("rules.toml") && seen.err.contains("hint: "),
        "{seen:?}"
    );
}

#[test]
fn the_network_is_off_unless_configured() {
    let workspace = CommandsWorkspace::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "return (await tools.exec({{ command: ['python3', '-c', \"import socket; socket.create_connection(('127.0.0.1', {port}), 2)\"] }})).exitCode"
    );
    assert_eq!(
        workspace.run(&["run", "-q", "-e", &script]).json(),
        json!(1)
    );
    workspace.write(
        "home/config.toml",
        "[sandbox_workspace_write]\nnetwork_access = true\n",
    );
    assert_eq!(
        workspace.run(&["run", "-q", "-e", &script]).json(),
        json!(0)
    );
}

/// Takes a lease on a file and keeps it until its input ends. While it does, the kernel blocks
/// every process that opens or executes the file, for 45 s by default.
const LEASE: &str = "import fcntl, os, signal, sys\n\
    signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
    fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
    print('held', flush=True)\n\
    sys.stdin.read()";

#[test]
#[cfg(target_os = "linux")]
fn a_tool_blocked_in_a_system_call_does_not_block_the_exit() {
    use std::io::BufRead;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;
    let workspace = CommandsWorkspace::new();
    workspace.write("project/program", "#!/bin/sh\ntouch ran\n");
    let project = workspace.dir.path().join("project");
    let program = project.join("program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut lease = Command::new("python3")
        .args(["-c", LEASE])
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = String::new();
    let output = lease.stdout.take().unwrap();
    std::io::BufReader::new(output)
        .read_line(&mut held)
        .unwrap();
    assert_eq!(held, "held\n");
    let script = "return await tools.exec({ command: ['./program'] })";
    let limit = "[script_harness.limits]\nmax_timeout_ms = 500\n";
    workspace.write("home/config.toml", limit);
    let seen = workspace.run(&["run", "-q", "-e", script]);
    assert!(
        seen.status == 1 && seen.err.contains("ScriptTimeoutError"),
        "{seen:?}"
    );
    // If the exit had waited for the call, the lease would have been broken and the program run.
    assert!(!project.join("ran").exists());
    drop(lease.stdin.take());
    assert!(lease.wait().unwrap().success());
}

#[test]
fn an_ignore_file_that_is_a_pipe_does_not_block_a_search() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/a.txt", "an x\n");
    let made = Command::new("mkfifo")
        .arg(workspace.dir.path().join("project/.gitignore"))
        .status()
        .unwrap();
    assert!(made.success());
    let search = "return await tools.grepFiles({ pattern: 'x' })";
    let seen = workspace.run(&["run", "-q", "-e", search]);
    assert_eq!(seen.status, 0, "{seen:?}");
    assert_eq!(seen.json()[0]["path"], "a.txt");
    assert_eq!(
        seen.json()[1],
        json!({
            "path": ".gitignore",
            "line": 0,
            "text": "",
            "skipped": "its ignore rules are not used: it is a pipe, not a regular file",
        })
    );
}

#[test]
fn tools_lists_every_tool_and_where_it_is_available() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&["tools"]);
    let line = |name: &str| {
        let prefix = format!("tools.{name} ");
        let mut lines = seen.out.lines();
        lines
            .find(|line| line.starts_with(&prefix))
            .unwrap_or_else(|| panic!("no {name} in {}", seen.out))
            .to_owned()
    };
    for (name, mark) in [
        ("agents.launch.async", "[in agent turns]"),
        ("agents.llm.chat", "[in agent turns]"),
        ("history.getTurn", "[in agent turns]"),
        ("memory.search", "[in agent turns]"),
        ("spawn.exec", "[with script_harness.expose.enable_spawn]"),
        ("http", "[with script_harness.expose.enable_http]"),
    ] {
        assert!(line(name).ends_with(mark), "{}", line(name));
    }
    assert!(!line("readFile").contains('['));
    workspace.write(
        "home/config.toml",
        "[script_harness.expose]\nenable_spawn = true\n",
    );
    let listed = workspace.run(&["tools", "--json"]).json();
    let available = |name: &str| {
        let mut tools = listed.as_array().unwrap().iter();
        tools.find(|tool| tool["name"] == name).unwrap()["available"].clone()
    };
    assert_eq!(
        ["read_file", "spawn.exec", "agents.wait", "http"].map(available),
        ["always", "always", "agent-turn", "enable-http"]
    );
}

#[test]
fn the_log_of_a_run_has_spans_and_counters() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/a.txt", "one\n");
    let log = workspace.dir.path().join("log.jsonl");
    let log_path = log.to_str().unwrap();
    let script = "return (await tools.readFile({ path: 'a.txt' })).text";
    workspace.run(&["--log", log_path, "run", "-e", script]);
    let lines: Vec<Value> = std::fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let metric = |name: &str| {
        let mut fields = lines.iter().map(|line| &line["fields"]);
        fields.find(|fields| fields["metric"] == name).cloned()
    };
    let runs = metric("runs").unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(
        (&runs["mode"], &runs["value"]),
        (&json!("enabled"), &json!(1))
    );
    let calls = metric("calls").unwrap();
    assert_eq!(
        (&calls["tool"], &calls["outcome"]),
        (&json!("read_file"), &json!("done"))
    );
    let span = lines.iter().find(|line| line["span"]["name"] == "script");
    let span = span.unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(span["span"]["run"].as_str().unwrap().starts_with("scr_"));
    assert_eq!(span["span"]["calls"], 1);
    let call = lines
        .iter()
        .find(|line| line["span"]["name"] == "tool_call");
    assert_eq!(call.unwrap()["spans"][0]["name"], "script");
}
