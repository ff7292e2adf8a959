//! What only some can take: images, and what a model made for itself alone.

use selvedge_protocol::{Native, Origin};
use serde_json::Value;

/// What goes back to its maker, if this is the maker.
pub(crate) fn ours<'a>(native: &'a Option<Native>, origin: &Origin) -> Option<&'a Value> {
    native
        .as_ref()
        .filter(|native| native.origin == *origin)
        .map(|native| &native.json)
}

/// An image as an address that holds it.
pub(crate) fn image_url(data: &str, mime_type: &str) -> String {
    format!("data:{mime_type};base64,{data}")
}

/// What stands in place of something an API cannot carry.
pub(crate) fn not_shown(mime_type: &str) -> String {
    format!("[{mime_type} that cannot be shown here]")
}
