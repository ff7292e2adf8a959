//! Each project is distilled as its own configuration says, and a failing one stops no other. The
//! process after a command uses the configuration of its project, too.

use serde_json::{Value, json};

use super::schedule::{let_hours_pass, wait_until};
use super::{OfflineFixture, WORK, prompt_of};
use crate::answer_encoding::text;

/// A message in each of these folders, and the configuration of the folder.
fn fixture(folders: &[(&str, &str, &str)]) -> OfflineFixture {
    let fixture = OfflineFixture::new("model = \"mock/small\"", |asked| {
        match asked.raw.contains("# New turns") {
            true => vec![text("{\"lessons\": []}")].into(),
            false => vec![text("Fine.")].into(),
        }
    });
    for (folder, memory, message) in folders {
        let files = fixture.folder(&format!("{folder}/.selvedge"));
        std::fs::write(files.join("config.toml"), format!("[memory]\n{memory}\n")).unwrap();
        fixture.out(folder, &["exec", "--trust", message]);
    }
    fixture
}

/// Returns the models that were asked about new turns, with the texts.
fn asked(fixture: &OfflineFixture) -> Vec<(Value, String)> {
    let asked = fixture.server.asked().into_iter();
    let about_turns = asked.map(|asked| (asked.body["model"].clone(), prompt_of(&asked)));
    about_turns
        .filter(|(_, prompt)| prompt.contains("# New turns"))
        .collect()
}

#[test]
fn a_project_is_distilled_with_its_own_configuration() {
    let fixture = fixture(&[
        (
            "secret",
            "distill_idle_minutes = 0",
            "The vault is called heron.",
        ),
        (
            "local",
            "model = \"mock/tiny\"",
            "The lantern is called osprey.",
        ),
        (
            "gone",
            "model = \"mock/tiny\"",
            "The ferry is called kestrel.",
        ),
        (WORK, "", "The harbour is called falcon."),
    ]);
    std::fs::remove_dir_all(fixture.folder("gone")).unwrap();
    let_hours_pass(&fixture, 13);
    let done = fixture.json(WORK, &["memory", "distill", "--due", "--json"]);
    assert_eq!(done["turns"], 3, "{done}");
    let asked = asked(&fixture);
    let about = |word: &str| {
        let found = asked.iter().filter(|(_, prompt)| prompt.contains(word));
        found.map(|(model, _)| model.clone()).collect::<Vec<_>>()
    };
    // A run that is disabled does not begin, and turns of a folder that is gone are sent nowhere.
    assert!(
        about("heron").is_empty() && about("kestrel").is_empty(),
        "{asked:?}"
    );
    assert_eq!(about("osprey"), [json!("tiny")]);
    assert_eq!(about("falcon"), [json!("small")]);
}

#[test]
fn a_project_that_fails_stops_no_other() {
    let fixture = fixture(&[
        (
            "broken",
            "model = \"anthropic/claude\"",
            "The vault is called heron.",
        ),
        (WORK, "", "The harbour is called falcon."),
    ]);
    let (status, out, err) = fixture.run(WORK, &["memory", "distill", "--json"]);
    assert_eq!(status, 1, "{err}");
    assert!(
        err.contains("is not distilled: ") && err.contains("anthropic"),
        "{err}"
    );
    let done: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(done["turns"], 1, "{done}");
    let asked = asked(&fixture);
    assert!(
        asked.len() == 1 && asked[0].1.contains("falcon"),
        "{asked:?}"
    );
    // The turns of the other one wait, and it is not due at once.
    let states = fixture.json(WORK, &["memory", "distill", "--status", "--json"]);
    let states = states.as_array().unwrap().iter();
    let waiting: Vec<&Value> = states.filter(|state| state["new_turns"] == 1).collect();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert!(waiting[0]["last_pass"]["ended_ms"].is_null(), "{waiting:?}");
    let (status, _, _) = fixture.run(WORK, &["memory", "distill", "--due"]);
    assert_eq!(status, 0);
}

/// Trusts the folder `work` with this table `[memory]`.
fn trust(fixture: &OfflineFixture, memory: &str) {
    let files = fixture.folder("work/.selvedge");
    std::fs::write(files.join("config.toml"), format!("[memory]\n{memory}\n")).unwrap();
}

#[test]
fn the_process_after_a_command_uses_the_model_of_the_project() {
    let fixture = OfflineFixture::new("", |asked| match asked.raw.contains("### turn ") {
        true => vec![text(&json!({"compressed": "A greeting."}).to_string())].into(),
        false => vec![text("Hello.")].into(),
    });
    trust(&fixture, "model = \"mock/small\"");
    fixture.out(WORK, &["exec", "--trust", "The harbour is called falcon."]);
    wait_until(|| !fixture.has_process());
    let sql = "SELECT count(*) FROM memory_levels WHERE made_by = 'model'";
    assert_eq!(fixture.number(sql), 1);
}

#[test]
fn the_encoder_of_the_user_reads_no_turn_of_a_project_without_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let memory = format!(
        "encoder = \"mine/embed\"\n[model_providers.mine]\n\
         base_url = \"http://{address}/v1\"\nwire_api = \"chat\""
    );
    let fixture = OfflineFixture::new(&memory, |_| vec![text("Hello.")].into());
    trust(&fixture, "encoder = \"none\"");
    fixture.out(WORK, &["exec", "--trust", "Always lock the falcon gate."]);
    wait_until(|| !fixture.has_process());
    fixture.out(WORK, &["memory", "distill"]);
    let explain = ["memory", "explain", "Which gate?", "--json"];
    let explained = fixture.json(WORK, &explain);
    let stages = explained["stages"].as_array().unwrap();
    let vectors = stages.iter().find(|stage| stage["stage"] == "vectors");
    let outcome = &vectors.unwrap()["outcome"];
    assert_eq!(outcome, "skipped: there is no encoder", "{explained}");
    assert!(listener.accept().is_err(), "the encoder was asked");
}
