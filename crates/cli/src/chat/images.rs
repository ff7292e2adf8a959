//! Images in messages of the chat: pasted files, the image on the clipboard, and `@file`.
//!
//! A pasted image is a label in the text, such as `[image 1: shot.png]`. Deleting the label removes
//! the image.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use selvedge_toolbox::MAX_IMAGE_FILE_BYTES;

use super::app::Chat;
use super::rows::{StyledRow, sanitize_line, truncate};
use super::updates::ChatUpdate;
use crate::problem::Problem;
use crate::programs::chat_program;
use crate::prompt_images::{PromptImage, UserPrompt};

/// Endings of the names of image files. The content decides whether a file is an image.
const IMAGE_EXTENSIONS: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];
/// Widest name of an image in its label, in columns.
const MAX_LABEL_NAME_COLUMNS: usize = 40;
/// How long the program that reads the clipboard may take.
const CLIPBOARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of the pasted images that are kept.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// The labels of the images that were pasted in this chat, with the newest images. They stay when
/// their message is sent, because it may come back into the editor.
#[derive(Debug, Default)]
pub(crate) struct PastedImages(Vec<(String, Option<PromptImage>)>);

impl PastedImages {
    /// Keeps an image, and returns its label.
    fn add(&mut self, image: PromptImage) -> String {
        let name = Path::new(&image.name).file_name();
        let name = name.map_or(image.name.clone(), |name| name.to_string_lossy().into());
        let name = sanitize_line(&name).replace(['[', ']'], "");
        let name = truncate(&name, MAX_LABEL_NAME_COLUMNS);
        let label = format!("[image {}: {name}]", self.0.len() + 1);
        self.0.push((label.clone(), Some(image)));
        let mut bytes = 0;
        for (_, image) in self.0.iter_mut().rev() {
            bytes += image.as_ref().map_or(0, |image| image.image.data.len());
            if bytes > MAX_KEPT_BYTES {
                *image = None;
            }
        }
        label
    }

    /// Returns the message with the images whose labels it has, and those that it names as `@file`,
    /// in the order of the text, each once. Relative paths are relative to `folder`.
    fn attach(&self, text: String, folder: &Path) -> Result<UserPrompt, Problem> {
        let mut found: Vec<(usize, PromptImage)> = Vec::new();
        for (label, image) in &self.0 {
            let Some(at) = text.find(label) else { continue };
            let image = image.clone().ok_or_else(|| {
                Problem::new(format!("{label} is not kept any more")).hint("paste it again")
            })?;
            found.push((at, image));
        }
        let mut read = HashSet::new();
        for (at, path) in mentioned_images(&text, folder) {
            if read.insert(path.clone()) {
                found.push((at, PromptImage::read(&path)?));
            }
        }
        found.sort_by_key(|(at, _)| *at);
        Ok(UserPrompt {
            images: found.into_iter().map(|(_, image)| image).collect(),
            text,
        })
    }
}

impl Chat {
    /// Returns the message with its images. Fails if one cannot be read, if they are too many or
    /// too large, or if the model accepts none.
    pub(super) fn attach_images(&self, text: String) -> Result<UserPrompt, Problem> {
        let prompt = self.pasted_images.attach(text, &self.setup.directory)?;
        prompt.check_images(self.agent.model())?;
        Ok(prompt)
    }

    /// Returns a row for each image of a message.
    pub(super) fn image_rows(prompt: &UserPrompt) -> Vec<StyledRow> {
        let rows = prompt.images.iter().map(|image| {
            let text = format!("image {}", sanitize_line(&image.describe()));
            StyledRow::dim(text).indented(2)
        });
        rows.collect()
    }

    /// Reads a pasted file in the background, if the text is the path of an image. Returns whether
    /// it is. Terminals paste the path of a file that is dropped on them.
    pub(super) fn paste_image_file(&mut self, text: &str) -> bool {
        let Some(path) = pasted_path(text) else {
            return false;
        };
        let (sender, text) = (self.sender.clone(), text.to_owned());
        self.notice = Some("reading the image…".to_owned());
        tokio::task::spawn_blocking(move || {
            let image = PromptImage::read(&path).map(Box::new);
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::ImageFileRead { text, image });
        });
        true
    }

    /// Inserts the label of the image that was read from a pasted file, or the pasted text if it is
    /// no image.
    pub(super) fn handle_image_file(
        &mut self,
        text: &str,
        image: Result<Box<PromptImage>, Problem>,
    ) {
        self.notice = None;
        match image {
            Ok(image) => self.insert_image(*image),
            Err(problem) => {
                self.print_problem(&problem);
                self.paste_text(text);
            }
        }
    }

    /// Reads the image on the clipboard in the background.
    pub(super) fn paste_clipboard_image(&mut self) {
        let Some(program) = clipboard_program() else {
            let problem = Problem::new("there is no clipboard to read an image from");
            return self.print_problem(&problem.hint("type @FILE, or paste the path of an image"));
        };
        let path = match chat_program(&self.setup.toolbox.workspace, program[0]) {
            Ok(path) => path,
            Err(problem) => {
                let hint = format!("install {}, or paste the path of an image", program[0]);
                return self.print_problem(&problem.hint(hint));
            }
        };
        let sender = self.sender.clone();
        self.notice = Some("reading the clipboard…".to_owned());
        tokio::task::spawn_blocking(move || {
            let image = read_clipboard(&path, program);
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::ClipboardRead(image.map(Box::new)));
        });
    }

    /// Inserts the label of the image that was read from the clipboard.
    pub(super) fn handle_clipboard(&mut self, image: Result<Box<PromptImage>, Problem>) {
        self.notice = None;
        match image {
            Ok(image) => self.insert_image(*image),
            Err(problem) => self.print_problem(&problem),
        }
    }

    fn insert_image(&mut self, image: PromptImage) {
        let label = self.pasted_images.add(image);
        self.editor.insert(&format!("{label} "));
        self.history.reset_position();
        self.completions = None;
    }
}

/// Returns the program that writes the image of the clipboard to its standard output, and its
/// arguments.
fn clipboard_program() -> Option<&'static [&'static str]> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if cfg!(target_os = "macos") {
        return Some(&["pngpaste", "-"]);
    }
    match (is_set("WAYLAND_DISPLAY"), is_set("DISPLAY")) {
        (true, _) => Some(&["wl-paste", "--type", "image/png"]),
        (false, true) => Some(&["xclip", "-selection", "clipboard", "-t", "image/png", "-o"]),
        (false, false) => None,
    }
}

/// Reads an image from the clipboard. Blocks up to [`CLIPBOARD_TIMEOUT`].
fn read_clipboard(path: &Path, program: &[&str]) -> Result<PromptImage, Problem> {
    let name = program[0];
    let started = Command::new(path)
        .args(&program[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = started.map_err(|error| {
        Problem::new(format!("cannot run {name} to read the clipboard: {error}"))
            .hint(format!("install {name}, or paste the path of an image"))
    })?;
    let (sender, receiver) = channel();
    let output = child.stdout.take();
    // On its own thread, because a read cannot be stopped. It ends when the program does.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let limit = MAX_IMAGE_FILE_BYTES as u64 + 1;
        let read = output.map(|output| output.take(limit).read_to_end(&mut bytes));
        let _ = sender.send(read.is_some_and(|read| read.is_ok()).then_some(bytes));
    });
    let bytes = receiver.recv_timeout(CLIPBOARD_TIMEOUT);
    // It has written everything, or takes too long.
    let _ = child.kill();
    let _ = child.wait();
    match bytes {
        Ok(Some(bytes)) if !bytes.is_empty() => {
            PromptImage::from_bytes("clipboard".to_owned(), bytes)
        }
        Ok(_) => Err(Problem::new("the clipboard has no image")
            .hint("copy an image, or paste the path of an image")),
        Err(_) => Err(Problem::new(format!(
            "{name} did not answer within {} s",
            CLIPBOARD_TIMEOUT.as_secs()
        ))
        .hint("paste the path of an image")),
    }
}

/// Returns the path of an existing image file that a pasted text consists of. Terminals quote or
/// escape it, or paste a `file://` URL.
fn pasted_path(text: &str) -> Option<PathBuf> {
    let text = text.trim();
    if text.is_empty() || text.contains(['\n', '\r']) {
        return None;
    }
    let mut quotes = ['\'', '"'].into_iter();
    let quoted = quotes.find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    let path = match (quoted, text.strip_prefix("file://")) {
        (Some(path), _) => path.to_owned(),
        (None, Some(url)) => percent_decoded(url)?,
        (None, None) => without_backslashes(text),
    };
    let path = match path.strip_prefix("~/") {
        Some(rest) => std::env::home_dir()?.join(rest),
        None => PathBuf::from(path),
    };
    (path.is_absolute() && has_image_extension(&path) && path.is_file()).then_some(path)
}

fn has_image_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| {
        IMAGE_EXTENSIONS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(extension))
    })
}

/// Removes the backslashes with which a terminal escapes special characters.
fn without_backslashes(text: &str) -> String {
    let mut chars = text.chars();
    let mut plain = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.extend(chars.next()),
            c => plain.push(c),
        }
    }
    plain
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                after
            }
            _ => {
                bytes.push(*first);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

/// Returns the existing image files that a text names as `@path` or `@"path"`, with the positions
/// of the names. Other words that begin with `@` are text.
fn mentioned_images(text: &str, folder: &Path) -> Vec<(usize, PathBuf)> {
    let mut images = Vec::new();
    for (at, _) in text.match_indices('@') {
        if text[..at]
            .chars()
            .next_back()
            .is_some_and(|c| !c.is_whitespace() && !"([{\"'".contains(c))
        {
            continue;
        }
        let rest = &text[at + 1..];
        let named = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => rest.split_whitespace().next(),
        };
        // A sentence may continue after the name.
        let named = named.unwrap_or_default();
        let trimmed =
            named.trim_end_matches([',', '.', ';', ':', '!', '?', ')', ']', '}', '"', '\'']);
        let found = [named, trimmed].into_iter().find_map(|name| {
            let path = match name.strip_prefix("~/") {
                Some(rest) => std::env::home_dir()?.join(rest),
                None => folder.join(name),
            };
            (has_image_extension(&path) && path.is_file()).then_some(path)
        });
        images.extend(found.map(|path| (at, path)));
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG of one pixel.
    const PIXEL: &[u8] = include_bytes!("../../tests/images/pixel.png");

    #[test]
    fn pasted_paths_are_recognised_in_every_spelling() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my shot.PNG");
        std::fs::write(&file, PIXEL).unwrap();
        let shown = file.to_str().unwrap();
        let escaped = shown.replace(' ', "\\ ");
        let url = format!("file://{}", shown.replace(' ', "%20"));
        for text in [
            shown,
            &escaped,
            &url,
            &format!("'{shown}'"),
            &format!("\"{shown}\" "),
        ] {
            assert_eq!(pasted_path(text).as_deref(), Some(&*file), "{text}");
        }
        let missing = shown.replace("my", "no");
        let sentence = format!("see {shown}");
        for text in [
            "",
            "my shot.PNG",
            &missing,
            &sentence,
            "/etc/passwd",
            "file://%zz",
        ] {
            assert_eq!(pasted_path(text), None, "{text}");
        }
    }

    #[test]
    fn files_are_attached_where_the_text_names_them() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.png", "b c.png", "d.txt"] {
            std::fs::write(folder.path().join(name), PIXEL).unwrap();
        }
        let names = |text: &str| {
            let found = mentioned_images(text, folder.path()).into_iter();
            let names = found.map(|(_, path)| path.file_name().unwrap().to_owned());
            let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.join(", ")
        };
        assert_eq!(
            names("compare @\"b c.png\" with (@a.png)."),
            "b c.png, a.png"
        );
        assert_eq!(names("@a.png, please"), "a.png");
        assert_eq!(names("me@a.png @d.txt @none.png @"), "");
        let mut pasted = PastedImages::default();
        let image = PromptImage::from_bytes("x/y [1].png".to_owned(), PIXEL.to_vec()).unwrap();
        let label = pasted.add(image);
        assert_eq!(label, "[image 1: y 1.png]");
        let text = format!("first @a.png, then {label}");
        let prompt = pasted.attach(text, folder.path()).unwrap();
        assert_eq!(prompt.images.len(), 2);
        assert!(
            prompt.images[1]
                .describe()
                .starts_with("x/y [1].png (1 × 1")
        );
        let prompt = pasted.attach("neither".to_owned(), folder.path()).unwrap();
        assert!(prompt.images.is_empty());
        let twice = format!("@a.png, again @a.png, {label} and {label}");
        let prompt = pasted.attach(twice, folder.path()).unwrap();
        assert_eq!(prompt.images.len(), 2, "each image is sent once");
    }

    #[test]
    fn old_pasted_images_are_not_kept_for_ever() {
        let mut pasted = PastedImages::default();
        let mut image = PromptImage::from_bytes("a.png".to_owned(), PIXEL.to_vec()).unwrap();
        image.image.data = "A".repeat(MAX_KEPT_BYTES / 2);
        let labels = [(); 3].map(|()| pasted.add(image.clone()));
        let attach = |label: &String| pasted.attach(label.clone(), Path::new("/"));
        assert_eq!(attach(&labels[1]).unwrap().images.len(), 1);
        assert_eq!(attach(&labels[2]).unwrap().images.len(), 1);
        let problem = attach(&labels[0]).unwrap_err();
        assert_eq!(problem.to_string(), "[image 1: a.png] is not kept any more");
    }
}
