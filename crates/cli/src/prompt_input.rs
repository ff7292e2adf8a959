//! The prompt of a command: an argument, standard input, or both.

use std::io::{IsTerminal, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Result;
use selvedge_toolbox::{MAX_IMAGE_FILE_BYTES, is_image};

use crate::problem::Problem;
use crate::prompt_images::{PromptImage, UserPrompt};

/// Largest text that is read from standard input, in bytes. More does not fit into a request.
const MAX_INPUT_BYTES: usize = 4 << 20;
/// After this time without a byte on standard input, a command with a prompt says that it waits. A
/// parent process may leave standard input open without writing.
const WAIT_NOTE_DELAY: Duration = Duration::from_secs(3);

/// What is piped into standard input.
enum PipedInput {
    Text(String),
    Image(PromptImage),
}

/// Returns the prompt: the argument, followed by what is piped into standard input, a text or an
/// image. `None` and `-` take all of it from standard input.
pub(crate) fn read_prompt(word: Option<&str>) -> Result<UserPrompt> {
    let is_piped = !std::io::stdin().is_terminal();
    let word = word.filter(|word| *word != "-");
    let input = match word {
        Some(word) if word.trim().is_empty() || !is_piped => None,
        Some(_) => Some(read_input(Some(WAIT_NOTE_DELAY))?),
        None if is_piped => Some(read_input(None)?),
        None => None,
    };
    let mut prompt = UserPrompt {
        text: word.unwrap_or_default().to_owned(),
        images: Vec::new(),
    };
    match (input, word) {
        (Some(PipedInput::Text(text)), Some(word)) => prompt.text = join_prompt(word, &text),
        (Some(PipedInput::Text(text)), None) => prompt.text = text,
        (Some(PipedInput::Image(image)), _) => prompt.images.push(image),
        (None, _) => {}
    }
    if prompt.text.trim().is_empty() {
        return Err(Problem::new("missing a prompt")
            .hint("pass one: selvedge exec \"PROMPT\"")
            .into());
    }
    Ok(prompt)
}

fn join_prompt(prompt: &str, input: &str) -> String {
    match input.trim_end() {
        "" => prompt.to_owned(),
        input => format!("{prompt}\n\n<stdin>\n{input}\n</stdin>"),
    }
}

/// Reads standard input to its end. With a delay, says that it waits if no byte arrives in this
/// time.
fn read_input(note_delay: Option<Duration>) -> Result<PipedInput> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Problem::new(format!(
            "cannot read the prompt from standard input: {error}"
        ))
        .hint("pass the prompt as UTF-8 text")
    };
    let (sender, receiver) = channel();
    // On its own thread, because a read cannot be stopped. The thread ends with the process.
    std::thread::spawn(move || {
        let mut input = std::io::stdin()
            .lock()
            .take(MAX_IMAGE_FILE_BYTES as u64 + 1);
        let mut bytes = vec![0; 4096];
        let send = |result| sender.send(result).is_ok();
        match input.read(&mut bytes) {
            Ok(read) => {
                bytes.truncate(read);
                let rest = read > 0;
                if send(Ok(bytes)) && rest {
                    let mut bytes = Vec::new();
                    send(input.read_to_end(&mut bytes).map(|_| bytes));
                }
            }
            Err(error) => _ = send(Err(error)),
        }
    });
    let first = match note_delay {
        Some(delay) => receiver.recv_timeout(delay),
        None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    let first = match first {
        Err(RecvTimeoutError::Timeout) => {
            eprint_line!("note: waiting for standard input; pass </dev/null if there is none");
            receiver.recv().ok()
        }
        first => first.ok(),
    };
    let mut bytes = match first {
        Some(first) => first.map_err(|error| unreadable(&error))?,
        // The thread ended without a result.
        None => Vec::new(),
    };
    if let Ok(rest) = receiver.recv() {
        bytes.extend(rest.map_err(|error| unreadable(&error))?);
    }
    if is_image(&bytes) {
        let image = PromptImage::from_bytes("standard input".to_owned(), bytes)?;
        return Ok(PipedInput::Image(image));
    }
    if bytes.len() > MAX_INPUT_BYTES {
        let limit = MAX_INPUT_BYTES >> 20;
        return Err(
            Problem::new(format!("standard input has more than {limit} MB"))
                .hint("write it to a file, and name the file in the prompt")
                .into(),
        );
    }
    let text = String::from_utf8(bytes).map_err(|error| unreadable(&error))?;
    Ok(PipedInput::Text(text))
}
