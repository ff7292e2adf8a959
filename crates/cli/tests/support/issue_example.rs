//! The example of the docs: one script finds the most urgent issue, starts a session for it and
//! posts to a channel.

use std::path::Path;

/// The script that the model writes.
pub const SCRIPT: &str = "\
const issues = await workspace.query({ kind: 'issue', status: 'open' });
const urgent = issues.filter(i => i.priority === 'critical');
const session = await sessions.create({
  env: 'frontend',
  title: 'Fix ' + urgent[0].title
});
await session.send(urgent[0].markdownContent);
await channels.post('engineering', `Started working on ${urgent[0].title}`);";

const ISSUES: [(&str, &str); 3] = [
    (
        "login",
        "kind: issue\nstatus: open\npriority: critical\ntitle: Login accepts empty passwords\n---\n\n\
         `check` in login.js returns true for an empty password.\n",
    ),
    (
        "colour",
        "kind: issue\nstatus: open\npriority: low\ntitle: The button is too dark\n---\n\nUse a lighter blue.\n",
    ),
    (
        "crash",
        "kind: issue\nstatus: closed\npriority: critical\ntitle: Crash at the start\n---\n\nFixed.\n",
    ),
];

/// Writes the issues, and the code that one of them is about.
pub fn write_issues(work: &Path) {
    for folder in ["issues", "web"] {
        std::fs::create_dir(work.join(folder)).unwrap();
    }
    for (name, content) in ISSUES {
        let file = work.join(format!("issues/{name}.md"));
        std::fs::write(file, format!("---\n{content}")).unwrap();
    }
    let code = "export function check(password) {\n  return true;\n}\n";
    std::fs::write(work.join("web/login.js"), code).unwrap();
}

/// Compares a transcript with a page of the docs. `UPDATE_DOCS=1` updates the page.
pub fn compare_with_docs(page: &str, transcript: &str) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = docs.join(page);
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("<!-- generated: example -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /generated -->").unwrap();
    let fresh = format!(
        "{before}<!-- generated: example -->\n\n```console\n{transcript}```\n\n\
         <!-- /generated -->{after}"
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(page, fresh).unwrap();
    }
    assert_eq!(text, fresh, "run `make docs`");
}
