//! `view_image`: an image for the model to look at, made smaller where it is too large.

use std::io::{Cursor, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::Workspace;
use crate::aliases::spec;
use crate::blocking::blocking;

/// Bytes of a file that are looked at.
const MAX_BYTES: u64 = 20 << 20;
/// Bytes that are sent as they are: as Base64 they are less than the five megabytes that models take.
const MAX_SENT: usize = 3_500_000;
/// Longest side that is sent as it is.
const MAX_SIDE: u32 = 2048;
/// Sides beyond this are not even decoded.
const MAX_DECODED_SIDE: u32 = 20_000;
/// Bytes an image may take while it is decoded.
const MAX_DECODED: u64 = 512 << 20;
/// Taken while an image is decoded, because of the memory that takes.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

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
    /// Whether it was made smaller, or written anew in fewer bytes.
    scaled: bool,
}

/// The tool `view_image`.
pub(crate) struct ViewImage(pub(crate) Workspace);

impl Tool for ViewImage {
    fn spec(&self) -> ToolSpec {
        let description = "Reads an image, so that it can be shown with image().";
        spec::<Args, Output>("view_image", &[], description).as_read_only()
    }

    fn call(&self, args: Value, _: Call) -> CallFuture<'_> {
        let run = async |args: Args| {
            let workspace = self.0.clone();
            let turn = ONE_AT_A_TIME.acquire().await;
            blocking(move || {
                // Kept until the work is done, even if the call was cancelled meanwhile.
                let _turn = turn;
                view(&workspace, &args)
            })
            .await
        };
        typed_call(args, run, |image: &Output| {
            Some(format!(
                "{} × {} {}",
                image.width, image.height, image.mime_type
            ))
        })
    }
}

fn view(workspace: &Workspace, args: &Args) -> Result<Output, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let shown = workspace.shown(&path);
    let mut bytes = Vec::new();
    let read = workspace
        .open_file(&path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes);
    read.map_err(|error| ToolError::new(format!("{shown} cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ToolError::new(format!(
            "{shown} is larger than {} MB",
            MAX_BYTES >> 20
        )));
    }
    // Told by its content: the name may say anything.
    let format = image::guess_format(&bytes)
        .map_err(|_| ToolError::new(format!("{shown} is not an image that can be shown")))?;
    let broken =
        |error: image::ImageError| ToolError::new(format!("{shown} cannot be decoded: {error}"));
    let (width, height) = ImageReader::with_format(Cursor::new(&bytes), format)
        .into_dimensions()
        .map_err(broken)?;
    if width.max(height) > MAX_DECODED_SIDE {
        return Err(ToolError::new(format!(
            "{shown} is {width} × {height}: too large to decode"
        )));
    }
    // What cannot be decoded here cannot be looked at there.
    let mut reader = ImageReader::with_format(Cursor::new(&bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let image = reader.decode().map_err(broken)?;
    let as_it_is = width.max(height) <= MAX_SIDE && bytes.len() <= MAX_SENT;
    let (data, mime_type, width, height) = match as_it_is {
        true => (bytes, format.to_mime_type(), width, height),
        false => smaller(image).map_err(broken)?,
    };
    let (data, mime_type) = (STANDARD.encode(&data), mime_type.to_owned());
    Ok(Output {
        r#type: "image",
        data,
        mime_type,
        width,
        height,
        scaled: !as_it_is,
    })
}

/// The image in few enough bytes, with its size.
fn smaller(image: DynamicImage) -> image::ImageResult<(Vec<u8>, &'static str, u32, u32)> {
    let mut side = MAX_SIDE;
    let mut image = image;
    loop {
        if image.width().max(image.height()) > side {
            image = image.resize(side, side, image::imageops::FilterType::Triangle);
        }
        for format in [ImageFormat::Png, ImageFormat::Jpeg] {
            let mut out = Cursor::new(Vec::new());
            match format {
                ImageFormat::Jpeg => image.to_rgb8().write_to(&mut out, format)?,
                _ => image.write_to(&mut out, format)?,
            }
            if out.get_ref().len() <= MAX_SENT {
                return Ok((
                    out.into_inner(),
                    format.to_mime_type(),
                    image.width(),
                    image.height(),
                ));
            }
        }
        // A quarter of the pixels; a single one fits.
        side = image.width().max(image.height()).div_ceil(2);
    }
}
