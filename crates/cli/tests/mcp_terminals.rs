//! Terminals of scripts in `selvedge mcp serve`.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::Instant;

use serde_json::json;
use support::{Client, TestWorkspace};

#[test]
fn a_terminal_belongs_to_the_script_that_opened_it() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let opens = "const { sessionId } = await tools.execCommand({ cmd: 'cat', yieldTimeMs: 100 });
        await tools.writeFile({ path: 'id', content: String(sessionId) });
        await tools.writeStdin({ sessionId, chars: '', yieldTimeMs: 25_000 })";
    client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": opens}}),
    );
    let deadline = Instant::now() + support::TEST_TIMEOUT;
    while !workspace.work().join("id").exists() {
        assert!(Instant::now() < deadline, "the terminal is not opened");
        std::thread::yield_now();
    }
    let types = "const { text } = await tools.readFile({ path: 'id' });
        try { await tools.writeStdin({ sessionId: Number(text), chars: 'x\\n' }); return 'typed' }
        catch (error) { return error.message }";
    let message = client.value(types);
    let id = std::fs::read_to_string(workspace.work().join("id")).unwrap();
    assert_eq!(
        message,
        json!(format!("terminal {id} is not open (open terminals: none)"))
    );
}
