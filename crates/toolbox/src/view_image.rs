//! The tool `view_image`: returns an image for the model, scaled down if it is too large.

use std::io::{Cursor, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, image_parts, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;

/// The largest image file that is read.
const MAX_FILE_BYTES: u64 = 20 << 20;
/// Maximum bytes of the returned image. As base64 this stays below the 5 MB that models accept.
const MAX_SENT_BYTES: usize = 3_500_000;
/// Maximum width and height of the returned image, in pixels.
const MAX_SENT_SIDE_PIXELS: u32 = 2048;
/// Maximum width and height of an image that is decoded, in pixels.
const MAX_DECODED_SIDE_PIXELS: u32 = 20_000;
/// Maximum memory for decoding an image, in bytes.
const MAX_DECODE_MEMORY_BYTES: u64 = 512 << 20;
/// Allows one image to be decoded at a time, which bounds the memory.
static DECODE_PERMIT: Semaphore = Semaphore::const_new(1);

/// The image to return.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ViewImageArgs {
    /// Image file, relative to the workspace or absolute: PNG, JPEG, GIF or WebP.
    path: String,
    /// Folder that `path` is relative to, instead of the workspace.
    workdir: Option<String>,
}

/// The image; pass it to `image()` to show it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ViewImageOutput {
    /// Always `image`, which makes the result a content block.
    r#type: &'static str,
    /// The image as base64.
    data: String,
    mime_type: String,
    width: u32,
    height: u32,
    /// Whether the image was scaled down or re-encoded.
    scaled: bool,
}

/// The tool `view_image`.
pub(crate) struct ViewImage(pub(crate) Workspace);

impl Tool for ViewImage {
    fn spec(&self) -> ToolSpec {
        let description = "Reads an image. Show it with image().";
        built_in_spec::<ViewImageArgs, ViewImageOutput>("view_image", &[], description)
            .as_read_only()
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |args: ViewImageArgs| {
            let workspace = self.0.clone();
            let permit = DECODE_PERMIT.acquire().await;
            run_blocking(move || {
                // Held until decoding ends, even if the call is cancelled earlier.
                let _permit = permit;
                view(&workspace, &args)
            })
            .await
        };
        let shown = typed_call(args, run, |image: &ViewImageOutput| {
            Some(format!(
                "{} × {} {}",
                image.width, image.height, image.mime_type
            ))
        });
        Box::pin(async {
            let mut output = shown.await?;
            output.images = image_parts(std::slice::from_ref(&output.value));
            Ok(output)
        })
    }
}

fn view(workspace: &Workspace, args: &ViewImageArgs) -> Result<ViewImageOutput, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let shown = workspace.display_path(&path);
    let mut bytes = Vec::new();
    let read = workspace
        .open_file(&path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes);
    read.map_err(|error| ToolError::new(format!("{shown} cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ToolError::new(format!(
            "{shown} is larger than {} MB",
            MAX_FILE_BYTES >> 20
        )));
    }
    // Detected from the content: the file extension may be wrong.
    let format = image::guess_format(&bytes)
        .map_err(|_| ToolError::new(format!("{shown} is not an image in a supported format")))?;
    let broken =
        |error: image::ImageError| ToolError::new(format!("{shown} cannot be decoded: {error}"));
    let (width, height) = ImageReader::with_format(Cursor::new(&bytes), format)
        .into_dimensions()
        .map_err(broken)?;
    if width.max(height) > MAX_DECODED_SIDE_PIXELS {
        return Err(ToolError::new(format!(
            "{shown} is {width} × {height}: too large to decode"
        )));
    }
    // Decodes even an image that is returned unchanged: a broken image would fail at the model.
    let mut reader = ImageReader::with_format(Cursor::new(&bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODE_MEMORY_BYTES);
    reader.limits(limits);
    let image = reader.decode().map_err(broken)?;
    let fits = width.max(height) <= MAX_SENT_SIDE_PIXELS && bytes.len() <= MAX_SENT_BYTES;
    let (data, mime_type, width, height) = match fits {
        true => (bytes, format.to_mime_type(), width, height),
        false => shrink_image(image).map_err(broken)?,
    };
    let (data, mime_type) = (STANDARD.encode(&data), mime_type.to_owned());
    Ok(ViewImageOutput {
        r#type: "image",
        data,
        mime_type,
        width,
        height,
        scaled: !fits,
    })
}

/// Scales an image down, and re-encodes it, until it has at most `MAX_SENT_BYTES`. Returns the
/// bytes, the media type, the width and the height.
fn shrink_image(image: DynamicImage) -> image::ImageResult<(Vec<u8>, &'static str, u32, u32)> {
    let mut side = MAX_SENT_SIDE_PIXELS;
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
            if out.get_ref().len() <= MAX_SENT_BYTES {
                return Ok((
                    out.into_inner(),
                    format.to_mime_type(),
                    image.width(),
                    image.height(),
                ));
            }
        }
        // Each round has a quarter of the pixels. The loop ends, because one pixel always fits.
        side = image.width().max(image.height()).div_ceil(2);
    }
}
