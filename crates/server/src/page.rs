//! The web page: static files that are part of the program. They need no token, because they say
//! nothing about sessions; the page reads those with the API.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::api_error::ApiError;
use crate::state::SharedState;

/// Path of the page.
const INDEX_PATH: &str = "/";
/// How the paths of its other files begin.
const FILES_PREFIX: &str = "/page/";
/// What the page may load and do: files of this server only, no inline script or style, and HTML
/// only through the policy of `render.js`.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; font-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types selvedge-render";

macro_rules! page_files {
    ($($name:literal)+) => {
        /// Names and contents of all files.
        const FILES: &[(&str, &[u8])] = &[
            $(($name, include_bytes!(concat!("../page/", $name))),)+
        ];
    };
}

page_files! {
    "index.html"
    "style.css"
    "icon.svg"
    "main.js"
    "api.js"
    "dom.js"
    "format.js"
    "front-matter.js"
    "raw-turn.js"
    "recalled.js"
    "render.js"
    "approval-store.js"
    "approvals.js"
    "changes.js"
    "channels.js"
    "documents.js"
    "folders.js"
    "health.js"
    "health-summary.js"
    "item.js"
    "lessons.js"
    "list-view.js"
    "login.js"
    "memory.js"
    "memory-results.js"
    "mentions.js"
    "new-document.js"
    "new-lesson.js"
    "new-session.js"
    "run.js"
    "run-state.js"
    "runs.js"
    "script-editor.js"
    "script-item.js"
    "session.js"
    "sessions.js"
    "suggestions.js"
    "timeline.js"
    "topics.js"
    "transcript.js"
    "transcript-model.js"
    "unsaved.js"
}

/// A file of the page, as it is sent.
struct PageFile {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
    compressed: Bytes,
    etag: HeaderValue,
}

static PAGE_FILES: LazyLock<Vec<PageFile>> = LazyLock::new(|| {
    let files = FILES.iter();
    files
        .map(|(name, content)| PageFile::new(name, content))
        .collect()
});

impl PageFile {
    fn new(name: &'static str, content: &'static [u8]) -> Self {
        let hash: String = Sha256::digest(content)[..12]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let etag = HeaderValue::from_str(&format!("\"{hash}\""));
        Self {
            name,
            kind: kind_of(name),
            content,
            compressed: compress(content).unwrap_or_default().into(),
            etag: etag.unwrap_or(HeaderValue::from_static("\"\"")),
        }
    }

    fn response(&self, request: &HeaderMap) -> Response {
        let mut response = match request.get(header::IF_NONE_MATCH) {
            Some(known) if *known == self.etag => StatusCode::NOT_MODIFIED.into_response(),
            _ if accepts_gzip(request) && !self.compressed.is_empty() => {
                let gzip = [(header::CONTENT_ENCODING, "gzip")];
                (gzip, self.compressed.clone()).into_response()
            }
            _ => Bytes::from_static(self.content).into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.etag.clone());
        let fixed: [(HeaderName, &'static str); 7] = [
            (header::CONTENT_TYPE, self.kind),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            // A new version of the program has new files.
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "Accept-Encoding"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                "same-origin",
            ),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Returns the type of a file by the end of its name.
fn kind_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

fn compress(content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    encoder.finish()
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let accepted = request.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim().eq_ignore_ascii_case("gzip") && !matches!(parameters.trim(), "q=0" | "q=0.0")
    })
}

/// Returns whether a path is one of the page, without any other spelling of it.
pub(crate) fn is_page_path(path: &str) -> bool {
    let name = path.strip_prefix(FILES_PREFIX);
    let is_file = |name: &str| FILES.iter().any(|(file, _)| *file == name);
    path == INDEX_PATH || name.is_some_and(is_file)
}

/// Returns the routes of the page. They are not part of the API.
pub(crate) fn routes() -> Router<SharedState> {
    Router::new()
        .route(
            INDEX_PATH,
            get(async |headers: HeaderMap| file("index.html", &headers)),
        )
        .route(
            &format!("{FILES_PREFIX}{{name}}"),
            get(async |Path(name): Path<String>, headers: HeaderMap| file(&name, &headers)),
        )
}

fn file(name: &str, request: &HeaderMap) -> Result<Response, ApiError> {
    let file = PAGE_FILES.iter().find(|file| file.name == name);
    let file = file.ok_or_else(|| ApiError::not_found("such file"))?;
    Ok(file.response(request))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Largest size of all compressed files together, in bytes.
    const MAX_PAGE_BYTES: usize = 250 << 10;

    #[test]
    fn the_page_is_small_and_complete() {
        let size: usize = PAGE_FILES.iter().map(|file| file.compressed.len()).sum();
        assert!(size > 0 && size < MAX_PAGE_BYTES, "{size} bytes");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                PAGE_FILES.iter().any(|file| file.name == name),
                "{name} is not served"
            );
        }
    }

    #[test]
    fn files_load_nothing_from_other_servers_and_have_no_inline_script() {
        for file in PAGE_FILES.iter() {
            let text = std::str::from_utf8(file.content).unwrap();
            for part in [
                "http://",
                "https://",
                "innerHTML =",
                "eval(",
                " style=\"",
                " onclick=",
            ] {
                let is_known = file.name == "icon.svg" && part == "http://"
                    || file.name == "render.js" && part == "innerHTML =";
                assert!(is_known || !text.contains(part), "{part} in {}", file.name);
            }
            if file.name.ends_with(".html") {
                assert!(!text.contains("<script>") && !text.contains("<style"));
            }
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let first = file("main.js", &HeaderMap::new()).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        assert!(!first.headers().contains_key(header::CONTENT_ENCODING));
        let mut request = HeaderMap::new();
        request.insert(header::ACCEPT_ENCODING, "br, gzip;q=0.5".parse().unwrap());
        let compressed = file("main.js", &request).unwrap();
        assert_eq!(compressed.headers()[header::CONTENT_ENCODING], "gzip");
        request.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        let again = file("main.js", &request).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(file("../Cargo.toml", &request).is_err());
    }
}
