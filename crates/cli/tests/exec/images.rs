//! Images in prompts of `exec`, for all three model APIs.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::answer_encoding::text;
use super::{Fixture, configured, err, out};

/// A PNG of one pixel.
const PIXEL: &[u8] = include_bytes!("../images/pixel.png");

/// Starts a model that answers everything, and adds a provider for each API.
fn fixture() -> Fixture {
    let fixture = Fixture::new(|_| vec![text("A pixel.")].into());
    let url = &fixture.server.url;
    let providers = ["chat", "responses", "messages"].map(|api| {
        format!("[model_providers.of-{api}]\nbase_url = \"{url}\"\nwire_api = \"{api}\"\n")
    });
    let models = "[models.seer]\nimages = true\n";
    configured(&fixture, &format!("{}{models}", providers.concat()));
    std::fs::write(fixture.work().join("work/shot.png"), PIXEL).unwrap();
    fixture
}

/// Returns the image of the last request, as the API sends it.
fn sent_image(fixture: &Fixture) -> Value {
    let body = fixture.server.asked().last().unwrap().body.clone();
    let messages = body["messages"].as_array().or(body["input"].as_array());
    let mut parts = messages.unwrap().iter().filter_map(|message| {
        let mut parts = message["content"].as_array()?.iter();
        parts.find(|part| {
            part["type"]
                .as_str()
                .is_some_and(|kind| kind.contains("image"))
        })
    });
    parts.next_back().unwrap_or(&Value::Null).clone()
}

fn base64_pixel() -> String {
    // From the test's own copy, so that the encoding is checked, too.
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = PIXEL.chunks(3).flat_map(|group| {
        let mut bytes = [0; 3];
        bytes[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        (0..4).map(move |n| match n <= group.len() {
            true => alphabet[((bits >> (18 - 6 * n)) & 63) as usize] as char,
            false => '=',
        })
    });
    groups.collect()
}

#[test]
fn an_image_file_is_sent_to_every_api() {
    let fixture = fixture();
    let data = base64_pixel();
    let url = format!("data:image/png;base64,{data}");
    for (provider, expected) in [
        (
            "of-chat",
            json!({"type": "image_url", "image_url": {"url": url}}),
        ),
        (
            "of-responses",
            json!({"type": "input_image", "image_url": url}),
        ),
        (
            "of-messages",
            json!({"type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": data}}),
        ),
    ] {
        let args = ["exec", "-i", "shot.png", "What is this?"];
        let output = fixture.run(&[&args[..], &["--provider", provider, "-m", "seer"]].concat());
        assert_eq!(out(&output), "A pixel.", "{}", err(&output));
        let mut image = sent_image(&fixture);
        // A mark for the provider's cache is no part of the image.
        image.as_object_mut().unwrap().remove("cache_control");
        assert_eq!(image, expected, "{provider}");
        let body = fixture.server.asked().last().unwrap().raw.clone();
        assert!(body.contains("What is this?"), "{body}");
    }
    let listed = out(&fixture.run(&["sessions", "list"]));
    let id = listed.split_whitespace().next().unwrap().to_owned();
    let shown = out(&fixture.run(&["sessions", "show", &id]));
    assert!(
        shown.contains("> What is this?\n      [1 image]\n"),
        "{shown}"
    );
    // The session can be continued.
    let output = fixture.run(&[
        "exec",
        "--last",
        "--provider",
        "of-chat",
        "-m",
        "seer",
        "Which colour?",
    ]);
    assert_eq!(out(&output), "A pixel.", "{}", err(&output));
}

fn piped(fixture: &Fixture, args: &[&str], input: &[u8]) -> Output {
    let mut child = fixture
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_image_on_standard_input_is_sent_with_the_prompt() {
    let fixture = fixture();
    let output = piped(&fixture, &["exec", "-m", "seer", "What is this?"], PIXEL);
    assert_eq!(out(&output), "A pixel.", "{}", err(&output));
    assert_eq!(sent_image(&fixture)["type"], "image_url");
    let output = piped(&fixture, &["exec", "-m", "seer"], PIXEL);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).starts_with("error: missing a prompt\n"));
}

#[test]
fn an_image_that_cannot_be_sent_is_an_error_before_the_request() {
    let fixture = fixture();
    let work = fixture.work().join("work");
    std::fs::write(work.join("text.png"), "no image").unwrap();
    std::fs::write(work.join("cut.png"), &PIXEL[..40]).unwrap();
    let large = std::fs::File::create(work.join("large.png")).unwrap();
    large.set_len((20 << 20) + 1).unwrap();
    let formats = "hint: pass a PNG, JPEG, GIF or WebP file of at most 20 MB\n";
    let path = "hint: pass the path of an image file\n";
    for (file, error, hint) in [
        (
            "text.png",
            "error: text.png is not a PNG, JPEG, GIF or WebP image\n",
            formats,
        ),
        ("cut.png", "error: cut.png cannot be decoded: ", formats),
        (
            "large.png",
            "error: large.png is larger than 20 MB\n",
            formats,
        ),
        ("gone.png", "error: there is no image gone.png\n", path),
        (
            ".",
            "error: cannot read the image .: it is a folder, not a regular file\n",
            path,
        ),
    ] {
        let output = fixture.run(&["exec", "-m", "seer", "--image", file, "What is this?"]);
        assert_eq!(output.status.code(), Some(2), "{file}");
        let seen = err(&output);
        assert!(seen.starts_with(error) && seen.ends_with(hint), "{seen}");
    }
    let output = fixture.run(&["exec", "-i", "shot.png", "What is this?"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        err(&output),
        "error: the model mock accepts no images\nhint: use another model, or add to the top of \
         config.toml if it does: models.\"mock\".images = true\n"
    );
    assert!(fixture.server.asked().is_empty());
}
