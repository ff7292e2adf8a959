//! `view_image`: an image for the model to look at, made smaller where it is too large.

use std::io::{Cursor, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, ImageReader};
use schemars::JsonSchema;
use selvedge_tools::{Tool, ToolError, tool};
use serde::{Deserialize, Serialize};

use crate::Workspace;
use crate::aliases::aliases_of;
use crate::blocking::blocking;

/// Bytes of a file that are looked at.
const MAX_BYTES: u64 = 20 << 20;
/// Longest side that is sent as it is.
const MAX_SIDE: u32 = 2048;
/// Sides beyond this are not even decoded.
const MAX_DECODED_SIDE: u32 = 20_000;

/// Which image.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Image file, relative to the workspace or absolute: PNG, JPEG, GIF or WebP.
    path: String,
    /// Folder the path counts from, instead of the workspace.
    workdir: Option<String>,
}

/// The image; `image(result)` shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    /// `image`, so that it is a content block.
    r#type: &'static str,
    /// Base64.
    data: String,
    mime_type: String,
    width: u32,
    height: u32,
    /// Whether it was made smaller.
    scaled: bool,
}

pub(crate) fn view_image(workspace: &Workspace) -> impl Tool + use<> {
    let workspace = workspace.clone();
    let run = move |args: Args| {
        let workspace = workspace.clone();
        blocking(move || view(&workspace, &args))
    };
    tool("view_image", "Reads an image, so that it can be shown with image().", run)
        .read_only()
        .render(|output: &Output| format!("{} × {} {}", output.width, output.height, output.mime_type))
        .aliases(aliases_of("view_image"))
}

fn view(workspace: &Workspace, args: &Args) -> Result<Output, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let shown = workspace.shown(&path);
    let mut bytes = Vec::new();
    let read = workspace.open_file(&path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| ToolError::new(format!("{shown} cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ToolError::new(format!("{shown} is larger than {} MB", MAX_BYTES >> 20)));
    }
    // Told by its content: the name may say anything.
    let format = image::guess_format(&bytes)
        .map_err(|_| ToolError::new(format!("{shown} is not an image that can be shown")))?;
    let broken = |error: image::ImageError| ToolError::new(format!("{shown} cannot be decoded: {error}"));
    let (width, height) = ImageReader::with_format(Cursor::new(&bytes), format).into_dimensions().map_err(broken)?;
    if width.max(height) > MAX_DECODED_SIDE {
        return Err(ToolError::new(format!("{shown} is {width} × {height}: too large to decode")));
    }
    if width.max(height) <= MAX_SIDE {
        let data = STANDARD.encode(&bytes);
        return Ok(Output {
            r#type: "image",
            data,
            mime_type: format.to_mime_type().to_owned(),
            width,
            height,
            scaled: false,
        });
    }
    let image = image::load_from_memory_with_format(&bytes, format).map_err(broken)?;
    let small = image.resize(MAX_SIDE, MAX_SIDE, image::imageops::FilterType::Triangle);
    let mut out = Cursor::new(Vec::new());
    small.write_to(&mut out, ImageFormat::Png).map_err(broken)?;
    let (width, height) = (small.width(), small.height());
    Ok(Output {
        r#type: "image",
        data: STANDARD.encode(out.get_ref()),
        mime_type: "image/png".to_owned(),
        width,
        height,
        scaled: true,
    })
}
