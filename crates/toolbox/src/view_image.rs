//! The tool `view_image`: returns an image for the model, scaled down if it is too large.

use std::io::Read;

use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, image_parts, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::image_data::{MAX_IMAGE_FILE_BYTES, prepare_image};

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
        .take(MAX_IMAGE_FILE_BYTES as u64 + 1)
        .read_to_end(&mut bytes);
    read.map_err(|error| ToolError::new(format!("{shown} cannot be read: {error}")))?;
    let image = prepare_image(bytes).map_err(|error| ToolError::new(format!("{shown} {error}")))?;
    Ok(ViewImageOutput {
        r#type: "image",
        data: image.data,
        mime_type: image.mime_type.to_owned(),
        width: image.width,
        height: image.height,
        scaled: image.scaled,
    })
}
