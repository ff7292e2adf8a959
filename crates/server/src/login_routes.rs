//! Login of a browser: a URL that works once sets a cookie, which is a token of its own.

use axum::Extension;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use selvedge_http::RequestOrigin;
use selvedge_protocol::{NewApiToken, TokenScope, new_id, since_epoch};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::{ApiError, ErrorBody};
use crate::caller::ApiQuery;
use crate::secrets::{TokenSecret, hash_of};
use crate::state::SharedState;

/// Path of the login.
pub(crate) const LOGIN_PATH: &str = "/login";
/// Name of the cookie.
const COOKIE_NAME: &str = "selvedge_token";
/// How the names of tokens begin that logins created.
const PAGE_TOKEN_PREFIX: &str = "page";
/// How long the cookie and its token are valid, in seconds.
const COOKIE_SECONDS: u64 = 7 * 24 * 3600;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(log_in))
}

/// The secret of a login.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LoginQuery {
    /// The code in the URL that `selvedge serve` prints. It works once.
    code: String,
}

/// Log a browser in: set the cookie of the page, and redirect to it
///
/// The cookie is a token with all scopes for the workspaces of all valid tokens.
#[utoipa::path(
    get, path = "/login", tag = "login", params(LoginQuery), security(()),
    responses((status = 303), (status = "4XX", body = ErrorBody)),
)]
async fn log_in(
    method: Method,
    State(state): State<SharedState>,
    Extension(origin): Extension<RequestOrigin>,
    ApiQuery(query): ApiQuery<LoginQuery>,
) -> Result<Response, ApiError> {
    // Programs that show a preview of the link must not use up its code.
    if method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let tokens = &state.stores.tokens;
    if !tokens.take_login(hash_of(&query.code)).await? {
        return Err(ApiError::unauthorized().hint("run `selvedge serve login` for a new URL"));
    }
    let now = since_epoch();
    let mut workspaces = Vec::new();
    for token in tokens.tokens().await? {
        // What an earlier login reached does not count: its tokens may be revoked.
        let is_login = token.name.starts_with(PAGE_TOKEN_PREFIX);
        if !is_login && token.is_valid_at(now.as_millis() as i64) {
            workspaces.extend(token.workspaces);
        }
    }
    workspaces.sort();
    workspaces.dedup();
    let secret = TokenSecret::random().map_err(|error| ApiError::internal(error.to_string()))?;
    let token = NewApiToken {
        name: new_id(PAGE_TOKEN_PREFIX),
        secret_hash: secret.hash(),
        scopes: TokenScope::ALL.to_vec(),
        workspaces,
        expires_ms: Some(now.as_millis() as i64 + COOKIE_SECONDS as i64 * 1000),
        max_cost: None,
    };
    tokens.create_token(token).await?;
    let secure = match origin.is_tls || state.serves_tls {
        true => "; Secure",
        false => "",
    };
    let cookie = format!(
        "{COOKIE_NAME}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={COOKIE_SECONDS}{secure}",
        secret.reveal()
    );
    let cookie =
        HeaderValue::from_str(&cookie).map_err(|error| ApiError::internal(error.to_string()))?;
    let headers = [
        (header::LOCATION, HeaderValue::from_static("/")),
        (header::SET_COOKIE, cookie),
        // The URL has a secret, if a used one.
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

/// Returns the token in the cookie of a request.
pub(crate) fn cookie_token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='))
}

/// Fails unless a request with a cookie comes from a page of this server. Browsers send the cookie
/// with requests of pages on other ports of the same host, too.
pub(crate) fn check_same_origin(parts: &Parts) -> Result<(), ApiError> {
    let text = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    let authority = text(header::ORIGIN).map(|origin| origin.split_once("://"));
    let is_same = match authority {
        Some(authority) => authority.map(|(_, authority)| authority) == text(header::HOST),
        None => is_read,
    };
    match is_same {
        true => Ok(()),
        false => Err(ApiError::forbidden(
            "a request with a cookie must come from a page of this server",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::http::Request;

    use super::*;

    fn check(method: &str, origin: Option<&str>) -> bool {
        let mut request = Request::builder()
            .method(method)
            .header("Host", "localhost:7420");
        if let Some(origin) = origin {
            request = request.header("Origin", origin);
        }
        check_same_origin(&request.body(()).unwrap().into_parts().0).is_ok()
    }

    #[test]
    fn only_pages_of_this_server_change_something_with_a_cookie() {
        assert!(check("GET", None) && check("POST", Some("http://localhost:7420")));
        for (method, origin) in [
            ("POST", None),
            ("DELETE", None),
            ("POST", Some("http://localhost:3000")),
            ("GET", Some("http://localhost:3000")),
            ("POST", Some("null")),
        ] {
            assert!(!check(method, origin), "{method} {origin:?}");
        }
    }

    #[test]
    fn the_token_is_one_of_several_cookies() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, "a=b; xselvedge_token=c".parse().unwrap());
        assert_eq!(cookie_token(&headers), None);
        headers.append(header::COOKIE, "selvedge_token=slv_1; d=e".parse().unwrap());
        assert_eq!(cookie_token(&headers), Some("slv_1"));
    }
}
