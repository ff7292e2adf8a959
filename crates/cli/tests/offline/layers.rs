//! Layers that a person writes.

use super::OfflineFixture;

/// A text of about `tokens` tokens.
fn text(heading: &str, tokens: usize) -> String {
    format!(
        "# {heading}\n\n{}",
        "The token expires at noon. ".repeat(tokens / 6)
    )
}

#[test]
fn a_layer_is_added_listed_edited_and_removed() {
    let fixture = OfflineFixture::by_rules();
    let work = fixture.folder("work");
    std::fs::write(work.join("oauth.md"), text("How we use OAuth", 700)).unwrap();
    let args = ["memory", "layer", "add", "oauth.md", "--topic", "oauth"];
    let (status, _, err) = fixture.run("work", &args);
    assert_eq!(status, 0, "{err}");
    assert!(
        err.contains("How we use OAuth (used in this project)"),
        "{err}"
    );
    let list = |folder| fixture.json(folder, &["memory", "layer", "list", "--json"]);
    let layers = list("work");
    let (layer, id) = (&layers[0], layers[0]["lessonId"].as_str().unwrap());
    assert_eq!(
        (&layer["status"], &layer["topic"][0], &layer["kind"]),
        (&"used".into(), &"oauth".into(), &"layer".into())
    );
    assert!(layer["tokens"].as_u64().unwrap() >= 500, "{layer}");
    // Another folder does not see it, until it is for all projects.
    assert_eq!(list("elsewhere"), serde_json::json!([]));
    fixture.out(
        "work",
        &["memory", "layer", "edit", id, "--user", "--topic", "login"],
    );
    assert_eq!(list("elsewhere")[0]["topic"], serde_json::json!(["login"]));
    // What is recalled of a question about the topic.
    let explained = fixture.out(
        "work",
        &["memory", "explain", "when does the login token expire"],
    );
    assert!(explained.contains(id), "{explained}");
    let (status, _, err) = fixture.run("work", &["memory", "layer", "edit", id]);
    assert!(
        status != 0 && err.contains("error: nothing to change"),
        "{err}"
    );
    fixture.out("work", &["memory", "layer", "remove", id]);
    assert_eq!(list("work"), serde_json::json!([]));
    let (status, _, err) = fixture.run("work", &["memory", "layer", "remove", id]);
    assert!(
        status != 0 && err.contains(&format!("error: there is no layer `{id}`")),
        "{err}"
    );
    assert!(
        err.contains("hint: run `selvedge memory layer list`"),
        "{err}"
    );
}

#[test]
fn a_layer_has_500_to_5000_tokens_and_a_title_of_its_own() {
    let fixture = OfflineFixture::by_rules();
    let work = fixture.folder("work");
    std::fs::write(work.join("short.md"), text("Short", 60)).unwrap();
    std::fs::write(work.join("long.md"), text("Long", 9000)).unwrap();
    std::fs::write(work.join("right.md"), text("Right", 900)).unwrap();
    for name in ["short.md", "long.md"] {
        let (status, _, err) = fixture.run("work", &["memory", "layer", "add", name]);
        assert!(
            status != 0 && err.contains("error: a layer has 500 to 5000 tokens"),
            "{err}"
        );
        assert!(err.contains("hint: shorten the text"), "{err}");
    }
    fixture.out("work", &["memory", "layer", "add", "right.md"]);
    let (status, _, err) = fixture.run("work", &["memory", "layer", "add", "right.md"]);
    assert!(
        status != 0 && err.contains("error: there is already a layer with the title `Right`"),
        "{err}"
    );
    let (status, _, err) = fixture.run("work", &["memory", "layer", "add", "missing.md"]);
    assert!(
        status != 0 && err.contains("error: cannot read missing.md"),
        "{err}"
    );
}
