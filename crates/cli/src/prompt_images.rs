//! Images of a prompt: read from files or standard input, and checked against the model.

use std::path::Path;

use selvedge_agent::{TurnAuthor, TurnInput};
use selvedge_files::RefusalReason;
use selvedge_models::Model;
use selvedge_protocol::{Message, OutputPart};
use selvedge_text::count_noun;
use selvedge_toolbox::{ImageDataError, MAX_IMAGE_FILE_BYTES, PreparedImage, prepare_image};

use crate::problem::Problem;

/// Most images of a prompt.
const MAX_PROMPT_IMAGES: usize = 20;
/// Most bytes that all images of a prompt have in a request. Providers refuse larger requests, and
/// the images are sent again with each later turn.
const MAX_PROMPT_IMAGE_BYTES: usize = 20 << 20;

/// An image of a prompt.
#[derive(Debug, Clone)]
pub(crate) struct PromptImage {
    /// The file or another origin, for people.
    pub(crate) name: String,
    pub(crate) image: PreparedImage,
}

impl PromptImage {
    /// Reads an image file.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let name = path.display().to_string();
        let read = selvedge_files::read_user_file(path, MAX_IMAGE_FILE_BYTES);
        let bytes = read.map_err(|refusal| match refusal.reason {
            RefusalReason::TooLarge { .. } => unusable(&name, &ImageDataError::TooManyBytes),
            reason => Problem::new(format!("cannot read the image {name}: {reason}"))
                .hint("pass the path of an image file"),
        })?;
        let bytes = bytes.ok_or_else(|| {
            Problem::new(format!("there is no image {name}")).hint("pass the path of an image file")
        })?;
        Self::from_bytes(name, bytes)
    }

    /// Takes the content of an image file.
    pub(crate) fn from_bytes(name: String, bytes: Vec<u8>) -> Result<Self, Problem> {
        match prepare_image(bytes) {
            Ok(image) => Ok(Self { name, image }),
            Err(error) => Err(unusable(&name, &error)),
        }
    }

    /// Describes the image in one line.
    pub(crate) fn describe(&self) -> String {
        let PreparedImage {
            width,
            height,
            scaled,
            ..
        } = self.image;
        let scaled = if scaled { ", scaled down" } else { "" };
        format!("{} ({width} × {height}{scaled})", self.name)
    }
}

fn unusable(name: &str, error: &ImageDataError) -> Problem {
    let limit = MAX_IMAGE_FILE_BYTES >> 20;
    Problem::new(format!("{name} {error}")).hint(format!(
        "pass a PNG, JPEG, GIF or WebP file of at most {limit} MB"
    ))
}

/// Returns the text of a message, with a line for its images.
pub(crate) fn text_with_images(message: &Message) -> String {
    let text = message.text();
    let images = message.content.iter();
    let images = images.filter(|part| matches!(part, OutputPart::Image { .. }));
    match images.count() {
        0 => text,
        count => format!("{}\n[{}]", text.trim_end(), count_noun(count, "image")),
    }
}

/// The text and the images of a prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct UserPrompt {
    pub(crate) text: String,
    pub(crate) images: Vec<PromptImage>,
}

impl UserPrompt {
    /// Fails if the prompt has more images than can be sent, or the model accepts none.
    pub(crate) fn check_images(&self, model: &Model) -> Result<(), Problem> {
        if self.images.len() > MAX_PROMPT_IMAGES {
            let count = self.images.len();
            let message = format!("the message has {count} images, more than {MAX_PROMPT_IMAGES}");
            return Err(Problem::new(message).hint("send them in several messages"));
        }
        let bytes: usize = self.images.iter().map(|image| image.image.data.len()).sum();
        if bytes > MAX_PROMPT_IMAGE_BYTES {
            let limit = MAX_PROMPT_IMAGE_BYTES >> 20;
            let message = format!("the images of the message have more than {limit} MB together");
            return Err(Problem::new(message).hint("send them in several messages"));
        }
        if self.images.is_empty() || model.images {
            return Ok(());
        }
        let name = &model.name;
        let key = format!("models.{name:?}.images = true");
        Err(
            Problem::new(format!("the model {name} accepts no images")).hint(format!(
                "use another model, or add to the top of config.toml if it does: {key}"
            )),
        )
    }
}

impl From<UserPrompt> for TurnInput {
    fn from(prompt: UserPrompt) -> Self {
        let text = OutputPart::Text { text: prompt.text };
        let images = prompt.images.into_iter().map(|image| image.image.into());
        Self {
            parts: std::iter::once(text).chain(images).collect(),
            author: TurnAuthor::Person,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_with_too_many_or_too_large_images_is_refused() {
        let pixel = include_bytes!("../tests/images/pixel.png").to_vec();
        let image = PromptImage::from_bytes("a.png".to_owned(), pixel).unwrap();
        let mut model = Model::from_table("seer");
        model.images = true;
        let check = |count: usize, bytes: usize| {
            let mut image = image.clone();
            image.image.data = "A".repeat(bytes);
            let prompt = UserPrompt {
                text: String::new(),
                images: vec![image; count],
            };
            let checked = prompt.check_images(&model);
            checked.map_err(|problem| problem.to_string())
        };
        check(MAX_PROMPT_IMAGES, 100).unwrap();
        check(4, MAX_PROMPT_IMAGE_BYTES / 4).unwrap();
        assert_eq!(
            check(MAX_PROMPT_IMAGES + 1, 100).unwrap_err(),
            "the message has 21 images, more than 20"
        );
        assert_eq!(
            check(4, MAX_PROMPT_IMAGE_BYTES / 4 + 1).unwrap_err(),
            "the images of the message have more than 20 MB together"
        );
    }
}
