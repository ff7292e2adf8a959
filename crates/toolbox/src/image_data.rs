//! Prepares images for models: checks the format and the size, and scales large images down.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use selvedge_protocol::OutputPart;

/// Largest image file that is read, in bytes.
pub const MAX_IMAGE_FILE_BYTES: usize = 20 << 20;
/// Maximum bytes of an image for a model. As base64 this stays below the 5 MB that models accept.
const MAX_SENT_BYTES: usize = 3_500_000;
/// Maximum width and height of an image for a model, in pixels.
const MAX_SENT_SIDE_PIXELS: u32 = 2048;
/// Maximum width and height of an image that is decoded, in pixels.
const MAX_DECODED_SIDE_PIXELS: u32 = 20_000;
/// Maximum memory for decoding an image, in bytes.
const MAX_DECODE_MEMORY_BYTES: u64 = 512 << 20;

/// Why a file cannot be sent as an image. The texts continue a sentence that names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageDataError {
    /// The file has more than [`MAX_IMAGE_FILE_BYTES`].
    #[error("is larger than {} MB", MAX_IMAGE_FILE_BYTES >> 20)]
    TooManyBytes,
    /// The content is no image, or one in another format.
    #[error("is not a PNG, JPEG, GIF or WebP image")]
    UnknownFormat,
    /// The image has too many pixels.
    #[error("is {width} × {height}: too large to decode")]
    TooManyPixels {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The content is damaged.
    #[error("cannot be decoded: {0}")]
    Damaged(String),
}

/// An image in a form that models accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedImage {
    /// The image as base64.
    pub data: String,
    /// Media type, such as `image/png`.
    pub mime_type: &'static str,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Whether the image was scaled down or re-encoded.
    pub scaled: bool,
}

impl From<PreparedImage> for OutputPart {
    fn from(image: PreparedImage) -> Self {
        Self::Image {
            data: image.data,
            mime_type: image.mime_type.to_owned(),
        }
    }
}

/// Whether a file starts like a PNG, JPEG, GIF or WebP image.
pub fn is_image(bytes: &[u8]) -> bool {
    supported_format(bytes).is_some()
}

/// Returns the format from the content: the name of a file may be wrong.
fn supported_format(bytes: &[u8]) -> Option<ImageFormat> {
    let format = image::guess_format(bytes).ok()?;
    let supported = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ];
    supported.contains(&format).then_some(format)
}

/// Prepares the content of an image file. Decodes it, which may take a second and much memory.
pub fn prepare_image(bytes: Vec<u8>) -> Result<PreparedImage, ImageDataError> {
    if bytes.len() > MAX_IMAGE_FILE_BYTES {
        return Err(ImageDataError::TooManyBytes);
    }
    let format = supported_format(&bytes).ok_or(ImageDataError::UnknownFormat)?;
    let damaged = |error: image::ImageError| ImageDataError::Damaged(error.to_string());
    let (width, height) = ImageReader::with_format(Cursor::new(&bytes), format)
        .into_dimensions()
        .map_err(damaged)?;
    if width.max(height) > MAX_DECODED_SIDE_PIXELS {
        return Err(ImageDataError::TooManyPixels { width, height });
    }
    // Decodes even an image that is returned unchanged: a broken image would fail at the model.
    let mut reader = ImageReader::with_format(Cursor::new(&bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODE_MEMORY_BYTES);
    reader.limits(limits);
    let image = reader.decode().map_err(damaged)?;
    let fits = width.max(height) <= MAX_SENT_SIDE_PIXELS && bytes.len() <= MAX_SENT_BYTES;
    let (data, mime_type, width, height) = match fits {
        true => (bytes, format.to_mime_type(), width, height),
        false => shrink_image(image).map_err(damaged)?,
    };
    Ok(PreparedImage {
        data: STANDARD.encode(&data),
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
