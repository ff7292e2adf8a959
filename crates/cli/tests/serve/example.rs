//! The example of the docs on a server: one script, one turn, a new session whose turn the server
//! runs by itself, and a post. `docs/server.md` shows it; `UPDATE_DOCS=1` updates the page.

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::support::api::{ApiClient, ApiResponse};
use crate::support::issue_example::{SCRIPT, compare_with_docs, write_issues};

/// An environment that works in the folder of the session that uses it.
const FRONTEND: &str = "\
[environments.frontend]
sandbox_mode = \"workspace-write\"
limits = { timeout_ms = 60000 }
";

/// The script of the new session.
const FIX: &str = "\
await tools.editFile({
  path: 'web/login.js',
  oldString: 'return true',
  newString: 'return password.length > 0'
});";

/// Fields of responses that are the same each time.
const STABLE_FIELDS: [&str; 9] = [
    "id",
    "title",
    "environment",
    "creator",
    "session",
    "number",
    "author",
    "text",
    "answer",
];

#[test]
fn the_script_of_the_example_starts_a_session_that_the_server_runs() {
    let fixture = ServeFixture::with_config(FRONTEND, |asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let last = messages.last().unwrap()["content"].to_string();
        let all = asked.body["messages"].to_string();
        let answer = match all.contains("most urgent issue") {
            true if last.contains("most urgent issue") => block(SCRIPT),
            true => "A new session works on the login.".to_owned(),
            false if last.contains("empty password") => block(FIX),
            false => "Fixed: empty passwords are refused.".to_owned(),
        };
        vec![text(&answer)].into()
    });
    write_issues(&fixture.workspace.work());
    let (_server, client) = fixture.start();
    let mut transcript = ServeTranscript {
        client,
        text: String::new(),
        names: Vec::new(),
    };
    let prompt = json!({"prompt": "Start with the most urgent issue."});
    let created = transcript.client.post("/api/v1/sessions", prompt.clone());
    assert_eq!(created.status, 201, "{created:?}");
    let parent = created.body["id"].as_str().unwrap().to_owned();
    transcript.names.push((parent.clone(), "ses_a"));
    transcript.show("sessions", &format!(" -d '{prompt}'"), &created.body);
    let answered = transcript.get(&format!("sessions/{parent}/messages/1?wait_ms=60000"));
    assert_eq!(
        answered.body["answer"], "A new session works on the login.",
        "{answered:?}"
    );
    let asked = fixture.model.asked();
    let of_parent = asked
        .iter()
        .filter(|asked| asked.body.to_string().contains("most urgent issue"));
    assert_eq!(of_parent.count(), 2, "one script, and the final answer");
    let path = format!("/api/v1/sessions/{parent}/children");
    let children = transcript.client.get(&path);
    let child = children.body["sessions"][0]["id"].as_str();
    let child = child.unwrap_or_else(|| panic!("{children:?}")).to_owned();
    transcript.names.push((child.clone(), "ses_b"));
    transcript.get(&format!("sessions/{parent}/children"));
    let answered = transcript.get(&format!("sessions/{child}/messages/1?wait_ms=60000"));
    assert_eq!(
        answered.body["answer"], "Fixed: empty passwords are refused.",
        "{answered:?}"
    );
    let code = std::fs::read_to_string(fixture.workspace.work().join("web/login.js")).unwrap();
    assert!(code.contains("return password.length > 0;"), "{code}");
    let posts = transcript.get("channels/engineering/messages");
    let posts = posts.body["messages"].as_array().unwrap();
    assert_eq!(posts.len(), 1, "{posts:?}");
    assert_eq!(
        posts[0]["text"],
        "Started working on Login accepts empty passwords"
    );
    compare_with_docs("server.md", &transcript.text);
}

/// Requests and their responses, with stable ids and without times.
struct ServeTranscript {
    client: ApiClient,
    text: String,
    names: Vec<(String, &'static str)>,
}

impl ServeTranscript {
    /// Sends a request, which must succeed.
    fn get(&mut self, path: &str) -> ApiResponse {
        let response = self.client.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, 200, "{path}: {response:?}");
        self.show(path, "", &response.body);
        response
    }

    fn show(&mut self, path: &str, more: &str, body: &Value) {
        let body = serde_json::to_string_pretty(&stable_part(body)).unwrap();
        let mut shown = format!("$ curl -sf -H \"$auth\" \"$api/{path}\"{more}\n{body}\n");
        for (id, name) in &self.names {
            shown = shown.replace(id, name);
        }
        self.text.push_str(&shown);
    }
}

/// Returns a response with the fields that are the same each time.
fn stable_part(body: &Value) -> Value {
    match body {
        Value::Object(fields) => {
            let is_shown = |(name, value): &(&String, &Value)| match value {
                Value::Null => false,
                Value::Array(values) => !values.is_empty(),
                _ => STABLE_FIELDS.contains(&name.as_str()),
            };
            let fields = fields.iter().filter(is_shown);
            let fields = fields.map(|(name, value)| (name.clone(), stable_part(value)));
            let mut fields: Vec<(String, Value)> = fields.collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(values) => values.iter().map(stable_part).collect(),
        other => other.clone(),
    }
}
