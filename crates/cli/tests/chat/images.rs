//! Images in messages of the chat: named files, pasted paths and the clipboard.

use std::os::unix::fs::PermissionsExt;

use super::driver::ChatFixture;
use super::support::folder_without_commands;
use super::{READY, last, polite};

/// A PNG of one pixel.
const PIXEL: &[u8] = include_bytes!("../images/pixel.png");

/// A model that accepts images, and two image files.
fn fixture() -> ChatFixture {
    let fixture = ChatFixture::new(polite);
    fixture.configure("[models.mock]\nimages = true\n");
    std::fs::write(fixture.work().join("shot.png"), PIXEL).unwrap();
    std::fs::write(fixture.work().join("my shot.png"), PIXEL).unwrap();
    fixture
}

/// Returns the number of images in the last message of a request.
fn images(fixture: &ChatFixture, request: usize) -> usize {
    last(&fixture.server.asked()[request])
        .matches("data:image/png;base64,")
        .count()
}

#[test]
fn a_named_file_and_a_pasted_path_are_sent_as_images() {
    let fixture = fixture();
    let mut terminal = fixture.open(&[], 100, 40, &[]);
    terminal.send("What is in @shot.png, and why?");
    terminal.wait_for("  image ");
    fixture.wait_for_requests(1);
    assert_eq!(images(&fixture, 0), 1);
    terminal.wait_for(READY);
    let path = fixture.work().join("my shot.png");
    let dropped = path.to_str().unwrap().replace(' ', "\\ ");
    terminal.type_text("Compare ");
    terminal.wait_for("› Compare");
    terminal.paste(&dropped);
    terminal.wait_for("› Compare [image 1: my shot.png]");
    terminal.paste(&format!("'{}'", fixture.work().join("shot.png").display()));
    terminal.wait_for("[image 2: shot.png]");
    terminal.type_text("\r");
    fixture.wait_for_requests(2);
    assert_eq!(images(&fixture, 1), 2);
    assert!(last(&fixture.server.asked()[1]).contains("Compare [image 1: my shot.png]"));
    // A label that is deleted takes its image with it.
    terminal.wait_for(READY);
    terminal.paste(&dropped);
    terminal.wait_for("› [image 3: my shot.png]");
    terminal.type_text("\x15No image\r");
    fixture.wait_for_requests(3);
    assert_eq!(images(&fixture, 2), 0);
}

#[test]
fn the_image_on_the_clipboard_is_inserted() {
    let fixture = fixture();
    let programs = folder_without_commands();
    let programs = programs.path();
    let program = programs.join("wl-paste");
    let shot = fixture.work().join("shot.png");
    let copied = fixture.dir.path().join("copied");
    let script = format!(
        "#!/bin/sh\n[ -e '{}' ] || exit 1\n[ \"$*\" = '--type image/png' ] && cat '{}'\n",
        copied.display(),
        shot.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let environment = [("PATH", path.as_str()), ("WAYLAND_DISPLAY", "wayland-0")];
    let mut terminal = fixture.open(&[], 100, 30, &environment);
    terminal.wait_for(READY);
    terminal.type_text("\x16");
    terminal.wait_for("error: the clipboard has no image");
    std::fs::write(&copied, "").unwrap();
    terminal.type_text("\x16");
    terminal.wait_for("› [image 1: clipboard]");
    terminal.type_text("what is it?\r");
    fixture.wait_for_requests(1);
    assert_eq!(images(&fixture, 0), 1);
    // A program that commands could replace is not started.
    let replaceable = fixture.work().join("bin");
    std::fs::create_dir(&replaceable).unwrap();
    std::fs::copy(&program, replaceable.join("wl-paste")).unwrap();
    let path = format!("{}:{}", replaceable.display(), path);
    let environment = [("PATH", path.as_str()), ("WAYLAND_DISPLAY", "wayland-0")];
    let mut terminal = fixture.open(&[], 100, 30, &environment);
    terminal.wait_for(READY);
    terminal.type_text("\x16");
    terminal.wait_for("error: commands of agents could replace");
    // Without a display there is no clipboard.
    let mut terminal = fixture.open(&[], 100, 30, &[]);
    terminal.wait_for(READY);
    terminal.type_text("\x16");
    terminal.wait_for("error: there is no clipboard to read an image from");
    terminal.wait_for("hint: type @FILE, or paste the path of an image");
}

#[test]
fn a_message_with_an_image_that_cannot_be_sent_returns_to_the_input() {
    let fixture = fixture();
    fixture.configure("");
    let mut terminal = fixture.open(&[], 100, 30, &[]);
    terminal.send("Look at @shot.png now");
    terminal.wait_for("error: the model mock accepts no images");
    terminal.wait_for("› Look at @shot.png now");
    fixture.configure("[models.mock]\nimages = true\n");
    std::fs::write(fixture.work().join("shot.png"), "no image").unwrap();
    let mut terminal = fixture.open(&[], 200, 30, &[]);
    terminal.send("Look at @shot.png now");
    terminal.wait_for("shot.png is not a PNG, JPEG, GIF or WebP image");
    terminal.wait_for("› Look at @shot.png now");
    assert!(fixture.server.asked().is_empty());
}

#[test]
fn images_of_earlier_turns_are_not_sent_to_a_model_without_images() {
    let fixture = fixture();
    let mut terminal = fixture.open(&[], 100, 30, &[]);
    terminal.send("What is in @shot.png?");
    fixture.wait_for_requests(1);
    terminal.wait_for(READY);
    let sent = |request: usize| fixture.server.asked()[request].raw.clone();
    let image = "data:image/png;base64,";
    let note = "[image/png omitted: the model accepts no images]";
    assert_eq!(images(&fixture, 0), 1);
    terminal.send("/model mock/blind");
    terminal.wait_for("  blind ·");
    terminal.send("Which colour?");
    fixture.wait_for_requests(2);
    assert!(sent(1).contains("What is in @shot.png?"), "{}", sent(1));
    assert!(!sent(1).contains(image), "{}", sent(1));
    assert!(sent(1).contains(note), "{}", sent(1));
    // The image is still part of the session.
    terminal.wait_for(READY);
    terminal.send("/model mock/mock");
    terminal.wait_for("  mock ·");
    terminal.send("And now?");
    fixture.wait_for_requests(3);
    assert!(sent(2).contains(image) && !sent(2).contains(note));
}
