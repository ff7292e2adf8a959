//! Agents that write the program of an MCP server, or a file that it executes: the server starts
//! none of them, because programs of MCP servers are not confined.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::support::api::{ALL_SCOPES, ApiClient, ApiServer, create_token};
use crate::support::{TEST_TIMEOUT, folder_without_commands, store};

/// Why a program is refused that agents can write.
const REPLACEABLE: &str = "commands of agents could replace";

/// A folder that agents cannot write, unlike the folder for temporary files.
struct KeptFolder(tempfile::TempDir);

impl KeptFolder {
    fn new() -> Self {
        Self(folder_without_commands())
    }

    fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    /// The file that the program of an agent creates.
    fn mark(&self) -> PathBuf {
        self.path().join("mark")
    }
}

fn install(program: &Path) {
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::write(program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn shell(command: &str) -> String {
    let command = json!(["sh", "-c", command]);
    format!("return (await tools.exec({{ command: {command} }})).aggregatedOutput")
}

/// Lets an agent write a program that leaves a mark.
fn write_program(client: &ApiClient, session: &str, mark: &Path) {
    let text = json!(format!("#!/bin/sh\necho x > {}\n", mark.display()));
    let write = format!("await tools.writeFile({{ path: 'bin/helper', content: {text} }})");
    let code = format!("{write}; {}", shell("chmod +x bin/helper && echo written"));
    let answer = run_script(client, session, &code);
    assert!(answer.contains("written"), "{answer}");
}

/// Calls the server `helper` until it is started again after its pause, and the error of this
/// start has the reason. Fails if the program leaves a mark.
fn expect_refusal(client: &ApiClient, session: &str, mark: &Path, reason: &str) {
    expect_refusal_of("helper", client, session, mark, reason);
}

fn expect_refusal_of(name: &str, client: &ApiClient, session: &str, mark: &Path, reason: &str) {
    let call = format!("return await tools.mcp.{name}.x({{}}).catch(e => 'ERR ' + e)");
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let answer = run_script(client, session, &call);
        assert!(!mark.exists(), "the program ran: {answer}");
        if answer.contains(reason) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{reason:?} is not the reason: {answer}"
        );
    }
}

#[test]
fn a_program_that_an_agent_creates_later_is_not_started() {
    for is_moved_away in [false, true] {
        let fixture = ServeFixture::new(runs_scripts);
        let work = fixture.workspace.work().canonicalize().unwrap();
        let outside = KeptFolder::new();
        let program = work.join("bin/helper");
        fixture.add_config(&format!(
            "[mcp_servers.helper]\ncommand = {program:?}\n\
             [environments.other]\nsandbox_mode = \"workspace-write\""
        ));
        std::fs::create_dir(work.join("bin")).unwrap();
        let (_server, client) = fixture.start();
        let first = client.session(json!({}));
        if is_moved_away {
            install(&program);
            run_script(&client, &first, &shell("mv bin/helper bin/other"));
        }
        // The configuration is read while the program is missing.
        let second = client.session(json!({"environment": "other"}));
        run_script(&client, &second, "return 1");
        write_program(&client, &first, &outside.mark());
        expect_refusal(&client, &second, &outside.mark(), REPLACEABLE);
    }
}

#[test]
fn a_program_in_the_workspace_of_a_later_token_is_not_started() {
    let fixture = ServeFixture::new(runs_scripts);
    let (outside, kept) = (KeptFolder::new(), KeptFolder::new());
    let folder = kept.path();
    let program = folder.join("bin/helper");
    install(&program);
    fixture.add_config(&format!("[mcp_servers.helper]\ncommand = {program:?}"));
    let (server, client) = fixture.start();
    let session = client.session(json!({}));
    // The configuration is read while no token has the folder.
    run_script(&client, &session, "return 1");
    let args = ["later", "--workspace", folder.to_str().unwrap()];
    let secret = create_token(&fixture.workspace, &[&args, &ALL_SCOPES[..]].concat());
    let later = server.client(&secret);
    write_program(&later, &later.session(json!({})), &outside.mark());
    expect_refusal(&client, &session, &outside.mark(), REPLACEABLE);
}

/// The token is used at another server only. Without `SELVEDGE_TEST_STORE`, both servers have the
/// same journal.
#[test]
fn a_program_in_the_workspace_of_a_token_of_another_server_is_not_started() {
    let fixture = ServeFixture::new(runs_scripts);
    let (outside, kept) = (KeptFolder::new(), KeptFolder::new());
    let folder = kept.path();
    install(&folder.join("bin/helper"));
    let (one, _) = fixture.start();
    fixture.add_config("[mcp_servers.helper]\ncommand = \"helper\"");
    let mut command = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"]);
    if !store::uses_files() {
        let home = fixture.workspace.home().with_file_name("second");
        std::fs::create_dir_all(&home).unwrap();
        let config = fixture.workspace.home().join("config.toml");
        std::fs::copy(config, home.join("config.toml")).unwrap();
        command.env("SELVEDGE_HOME", home);
    }
    let bin = folder.join("bin");
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let two = ApiServer::listen(command);
    let args = ["later", "--workspace", folder.to_str().unwrap()];
    let secret = create_token(&fixture.workspace, &[&args, &ALL_SCOPES[..]].concat());
    let later = one.client(&secret);
    write_program(&later, &later.session(json!({})), &outside.mark());
    let client = two.client(&fixture.secret);
    let session = client.session(json!({}));
    expect_refusal(&client, &session, &outside.mark(), REPLACEABLE);
}

/// The program itself is safe, but it executes files of the folder that it starts in, or programs
/// that it finds in `PATH`.
#[test]
fn a_server_executes_no_files_of_the_workspace() {
    let module = json!({"command": "python3", "args": ["-m", "helper"]});
    let in_folder = json!({"command": "python3", "args": ["-m", "helper"], "cwd": "."});
    let by_path =
        json!({"command": "sh", "args": ["-c", "helper"], "env": {"PATH": "WORK/bin:/bin"}});
    let by_file = json!({"command": "python3", "args": ["WORK/helper.py"]});
    let by_shell = json!({"command": "sh", "args": ["-c", "exec python3 'WORK/helper.py'"]});
    let by_option = json!({"command": "python3", "args": ["-X", "pycache_prefix=WORK/bin"]});
    let by_variable = json!({
        "command": "python3", "args": ["-m", "helper"], "env": {"PYTHONPATH": "WORK"}
    });
    let argument = "its `args` or `env` name ";
    for (server, reason) in [
        (module, "No module named helper"),
        (in_folder, "it would start in "),
        (by_path, "not found"),
        (by_file, argument),
        (by_shell, argument),
        (by_option, argument),
        (by_variable, argument),
    ] {
        let fixture = ServeFixture::new(runs_scripts);
        let work = fixture.workspace.work().canonicalize().unwrap();
        let outside = KeptFolder::new();
        let servers = json!({"mcpServers": {"helper": server}}).to_string();
        let servers = servers.replace("WORK", work.to_str().unwrap());
        std::fs::write(work.join(".mcp.json"), servers).unwrap();
        let trusted = fixture.workspace.command(&["tools", "--trust"]).output();
        assert!(trusted.unwrap().status.success());
        let (_server, client) = fixture.start();
        let session = client.session(json!({}));
        let mark = outside.mark();
        let module = json!(format!(
            "open({:?}, 'w').write('x')\n",
            mark.display().to_string()
        ));
        let write = format!("await tools.writeFile({{ path: 'helper.py', content: {module} }})");
        run_script(&client, &session, &write);
        std::fs::create_dir_all(work.join("bin")).unwrap();
        write_program(&client, &session, &mark);
        expect_refusal(&client, &session, &mark, reason);
    }
}

/// Command lines whose files are found through another program, a variable, or a part that a shell
/// or a URL encodes. The agent moves the folder of one away while it is checked.
#[test]
fn a_server_executes_no_files_that_its_command_line_names_indirectly() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    let outside = KeptFolder::new();
    let argument = "its `args` or `env` name ";
    let servers = [
        (
            "env",
            "command = 'env'\nargs = ['python3', 'WORK']",
            argument,
        ),
        (
            "timeout",
            "command = 'timeout'\nargs = ['600', 'python3', 'WORK']",
            argument,
        ),
        (
            "warnings",
            "command = 'python3'\nargs = ['-W', 'ignore', 'WORK']",
            argument,
        ),
        (
            "option",
            "command = 'python3'\nargs = ['-X', 'dev', 'WORK']",
            argument,
        ),
        (
            "inherited",
            "command = 'python3'\nargs = ['-m', 'helper']\nenv_vars = ['PYTHONPATH']",
            argument,
        ),
        (
            "tilde",
            "command = 'sh'\nargs = ['-c', 'cd ~/work && exec python3 helper.py']",
            argument,
        ),
        (
            "home",
            "command = 'sh'\nargs = ['-c', 'exec python3 $HOME/work/helper.py']",
            argument,
        ),
        (
            "unknown",
            "command = 'sh'\nargs = ['-c', 'exec python3 $(echo WORK)']",
            "it is not known which files ",
        ),
        (
            "later",
            "command = 'node'\nargs = ['-e', '0']\nenv = { NODE_PATH = 'WORK/build/lib' }",
            argument,
        ),
        (
            "url",
            "command = 'node'\nargs = ['--import=file://WORK/my%20dir/run.mjs', '-e', '0']",
            argument,
        ),
        (
            "moved",
            "command = 'python3'\nargs = ['WORK/moved/helper.py']",
            argument,
        ),
    ];
    let tables = servers.map(|(name, settings, _)| {
        let settings = settings.replace("WORK", work.to_str().unwrap());
        format!("[mcp_servers.{name}]\n{settings}\n")
    });
    fixture.add_config(&tables.concat());
    // `~/work` is the workspace.
    let home = outside.path();
    std::os::unix::fs::symlink(&work, home.join("work")).unwrap();
    let mut command = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"]);
    command.env("HOME", &home).env("PYTHONPATH", &work);
    let server = ApiServer::listen(command);
    let client = server.client(&fixture.secret);
    let session = client.session(json!({}));
    let mark = outside.mark();
    let module = json!(format!(
        "open({:?}, 'w').write('x')\n",
        mark.display().to_string()
    ));
    let write = format!(
        "for (const path of ['helper.py', '__main__.py', 'moved/helper.py'])
            await tools.writeFile({{ path, content: {module} }})"
    );
    run_script(&client, &session, &write);
    for (name, _, reason) in servers {
        expect_refusal_of(name, &client, &session, &mark, reason);
    }
    run_script(&client, &session, &shell("mv moved away"));
    expect_refusal_of("moved", &client, &session, &mark, argument);
}
