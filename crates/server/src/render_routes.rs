//! Route that renders texts as HTML for a page: Markdown, source code and diffs.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use axum::Json;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::{ApiJson, Caller};
use crate::highlight::load_grammars;
use crate::keyed_semaphores::KeyedSemaphores;
use crate::render::{render_code, render_diff, render_markdown, render_text};
use crate::state::SharedState;

/// Most texts of one request.
const MAX_TEXTS: usize = 200;
/// How long the texts of one request are formatted. The rest is shown as plain text.
const FORMAT_TIME_LIMIT: Duration = Duration::from_secs(1);
/// Requests that are rendered at once. Others wait.
const MAX_CONCURRENT_RENDERS: usize = 2;

static RENDERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(MAX_CONCURRENT_RENDERS));
/// One request of a token at a time, so that it leaves a place to others.
static RENDERS_OF_TOKENS: LazyLock<KeyedSemaphores> = LazyLock::new(|| KeyedSemaphores::new(1));

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(render_texts))
}

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextKind {
    /// Markdown, with tables and task lists.
    Markdown,
    /// Source code of a language.
    Code,
    /// A unified diff.
    Diff,
    /// Text without a format.
    Plain,
}

/// A text to render.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextToRender {
    /// What the text is.
    kind: TextKind,
    /// The text. Above 256 KiB it is rendered as plain text.
    text: String,
    /// Language of source code, such as `ts`.
    language: Option<String>,
}

/// Texts to render.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenderTexts {
    /// The texts, up to 200.
    texts: Vec<TextToRender>,
}

/// Texts as HTML.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenderedTexts {
    /// One HTML fragment per text, in the same order. It has no scripts, no styles, no images and
    /// no links but those to web pages.
    html: Vec<String>,
}

/// Render texts as HTML that is safe to insert into a page
#[utoipa::path(
    post, path = "/render", tag = "page", request_body = RenderTexts,
    responses((status = 200, body = RenderedTexts), (status = "4XX", body = ErrorBody)),
)]
async fn render_texts(
    caller: Caller,
    ApiJson(request): ApiJson<RenderTexts>,
) -> Result<Json<RenderedTexts>, ApiError> {
    if request.texts.len() > MAX_TEXTS {
        let message = format!("a request renders at most {MAX_TEXTS} texts");
        return Err(ApiError::invalid(message).hint("send several requests"));
    }
    let own = RENDERS_OF_TOKENS.acquire(&caller.token.id).await;
    let permit = RENDERS.acquire().await;
    let permit = permit.map_err(|error| ApiError::internal(error.to_string()))?;
    let render = move || {
        let _permits = (own, permit);
        // The first request loads them, which is not part of the limit.
        load_grammars();
        let deadline = Instant::now() + FORMAT_TIME_LIMIT;
        let texts = request.texts.iter();
        texts.map(|text| render(text, deadline)).collect()
    };
    let html = tokio::task::spawn_blocking(render).await;
    let html = html.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Json(RenderedTexts { html }))
}

fn render(text: &TextToRender, deadline: Instant) -> String {
    match text.kind {
        TextKind::Markdown => render_markdown(&text.text, deadline),
        TextKind::Code => {
            let language = text.language.as_deref().unwrap_or_default();
            render_code(language, &text.text, deadline)
        }
        TextKind::Diff => render_diff(&text.text),
        TextKind::Plain => render_text(&text.text),
    }
}
