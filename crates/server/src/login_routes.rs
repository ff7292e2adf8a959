//! Login of a browser: a URL that works once sets a cookie, which is a token of its own.

use axum::Extension;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use selvedge_protocol::{LOGIN_TOKEN_PREFIX, NewApiToken, TokenScope, new_id, since_epoch};
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
/// The page for a browser whose code is not valid: it was used, or is too old.
const USED_LOGIN_PAGE: &str = "/#/used-login";
/// Name of the cookie over HTTP.
const COOKIE_NAME: &str = "selvedge_token";
/// Name of the cookie over HTTPS. Browsers accept the prefix only from this host, over TLS, so that
/// neither a page over HTTP nor another host of the domain can set the cookie.
const SECURE_COOKIE_NAME: &str = "__Host-selvedge_token";
/// How long the cookie and its token are valid, in seconds.
const COOKIE_SECONDS: u64 = 7 * 24 * 3600;

pub(crate) fn routes() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(log_in))
}

/// How a browser or client reached the server, as far as the server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestScheme {
    Http,
    Https,
}

impl RequestScheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn cookie_name(self) -> &'static str {
        match self {
            Self::Http => COOKIE_NAME,
            Self::Https => SECURE_COOKIE_NAME,
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
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
/// The cookie is a token with all scopes for the workspaces of all valid tokens. If the code is not
/// valid, a browser is redirected to the page as well, which says so.
#[utoipa::path(
    get, path = "/login", tag = "login", params(LoginQuery), security(()),
    responses((status = 303), (status = "4XX", body = ErrorBody)),
)]
async fn log_in(
    method: Method,
    State(state): State<SharedState>,
    Extension(scheme): Extension<RequestScheme>,
    headers: HeaderMap,
    ApiQuery(query): ApiQuery<LoginQuery>,
) -> Result<Response, ApiError> {
    // Programs that show a preview of the link must not use up its code.
    if method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let tokens = &state.stores.tokens;
    if !tokens.take_login(hash_of(&query.code)).await? {
        if accepts_html(&headers) {
            let place = [(header::LOCATION, USED_LOGIN_PAGE)];
            return Ok((StatusCode::SEE_OTHER, place).into_response());
        }
        return Err(ApiError::unauthorized().hint("run `selvedge serve login` for a new URL"));
    }
    let now = since_epoch();
    let mut workspaces = Vec::new();
    for token in tokens.tokens().await? {
        // What an earlier login reached does not count: its tokens may be revoked.
        if !token.is_login() && token.is_valid_at(now.as_millis() as i64) {
            workspaces.extend(token.workspaces);
        }
    }
    workspaces.sort();
    workspaces.dedup();
    let secret = TokenSecret::random().map_err(|error| ApiError::internal(error.to_string()))?;
    let token = NewApiToken {
        name: new_id(LOGIN_TOKEN_PREFIX),
        secret_hash: secret.hash(),
        scopes: TokenScope::ALL.to_vec(),
        workspaces,
        expires_ms: Some(now.as_millis() as i64 + COOKIE_SECONDS as i64 * 1000),
        max_cost: None,
    };
    tokens.create_token(token).await?;
    let secure = match scheme {
        RequestScheme::Https => "; Secure",
        RequestScheme::Http => "",
    };
    let cookie = format!(
        "{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={COOKIE_SECONDS}{secure}",
        scheme.cookie_name(),
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

/// Whether the client is a browser that opens a page.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT);
    let accepted = accepted.and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

/// Returns the token in the cookie of a request.
pub(crate) fn cookie_token(headers: &HeaderMap, scheme: RequestScheme) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    let name = scheme.cookie_name();
    pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Fails unless a request with a cookie comes from a page of this server: of the same scheme, host
/// and port. Browsers send the cookie with requests of pages on other ports of the host, too. A
/// read may also come from the address bar. Browsers that do not say where a request comes from, as
/// over HTTP to another machine, can read without `Origin`.
pub(crate) fn check_same_origin(parts: &Parts, scheme: RequestScheme) -> Result<(), ApiError> {
    let text = |name: &str| {
        let value = parts.headers.get(name);
        value.and_then(|value| value.to_str().ok())
    };
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    let is_own = |origin: &str| {
        let (own, other) = (text("host"), origin.split_once("://"));
        let ends = own.zip(other.filter(|(other, _)| *other == scheme.as_str()));
        let ends = ends.map(|(own, (_, other))| (authority(own, scheme), authority(other, scheme)));
        ends.is_some_and(|(own, other)| own.is_some() && own == other)
    };
    let is_same = match (parts.headers.contains_key(header::ORIGIN), text("origin")) {
        (true, origin) => origin.is_some_and(is_own),
        (false, _) => is_read,
    };
    // Browsers set this header; pages cannot change it. A page on another port is `same-site`.
    let mut sites = parts.headers.get_all("sec-fetch-site").iter();
    let is_own_site = sites.all(|site| match site.as_bytes() {
        b"same-origin" => true,
        b"none" => is_read,
        _ => false,
    });
    match is_same && is_own_site {
        true => Ok(()),
        false => Err(ApiError::forbidden(
            "a request with a cookie must come from a page of this server",
        )),
    }
}

/// Returns host and port of an authority, in lower case and with the port of the scheme if it has
/// none. `None` if it is not valid.
fn authority(text: &str, scheme: RequestScheme) -> Option<(String, u16)> {
    let authority: Authority = text.parse().ok()?;
    let port = match authority.port() {
        Some(port) => port.as_str().parse().ok()?,
        None => scheme.default_port(),
    };
    Some((authority.host().to_lowercase(), port))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::http::Request;
    use axum::http::request::Builder;

    use super::*;

    /// Whether a request with the cookie is admitted that says where it comes from.
    fn check_site(method: &str, origin: Option<&str>, sites: &[&str]) -> bool {
        let mut request = Request::builder().method(method);
        request = request.header("Host", "localhost:7420");
        if let Some(origin) = origin {
            request = request.header("Origin", origin);
        }
        let with_site = |request: Builder, site: &&str| request.header("Sec-Fetch-Site", *site);
        let request = sites.iter().fold(request, with_site);
        let parts = request.body(()).unwrap().into_parts().0;
        check_same_origin(&parts, RequestScheme::Http).is_ok()
    }

    #[test]
    fn what_a_browser_says_about_a_request_decides() {
        let own = Some("http://localhost:7420");
        let cases: &[(&str, Option<&str>, &[&str], bool)] = &[
            ("GET", None, &[], true),
            ("GET", None, &["same-origin"], true),
            ("GET", own, &["same-origin"], true),
            ("HEAD", None, &["none"], true),
            ("POST", own, &["same-origin"], true),
            ("GET", None, &["same-site"], false),
            ("GET", None, &["cross-site"], false),
            ("HEAD", None, &["same-site"], false),
            ("GET", own, &["same-site"], false),
            ("GET", None, &["Same-Origin"], false),
            ("GET", None, &[""], false),
            ("GET", None, &["same-origin", "cross-site"], false),
            ("GET", None, &["cross-site", "same-origin"], false),
            ("GET", None, &["same-origin, cross-site"], false),
            ("POST", own, &["none"], false),
            ("POST", own, &["same-site"], false),
            ("DELETE", own, &["cross-site"], false),
            ("POST", None, &["same-origin"], false),
        ];
        for (method, origin, sites, is_admitted) in cases {
            let admitted = check_site(method, *origin, sites);
            assert_eq!(admitted, *is_admitted, "{method} {origin:?} {sites:?}");
        }
    }

    fn check(host: &str, scheme: RequestScheme, method: &str, origin: Option<&str>) -> bool {
        let mut request = Request::builder().method(method).header("Host", host);
        if let Some(origin) = origin {
            request = request.header("Origin", origin);
        }
        check_same_origin(&request.body(()).unwrap().into_parts().0, scheme).is_ok()
    }

    #[test]
    fn only_pages_of_this_server_change_something_with_a_cookie() {
        use RequestScheme::{Http, Https};
        let local = "localhost:7420";
        for (host, scheme, method, origin) in [
            (local, Http, "GET", None),
            (local, Http, "POST", Some("http://localhost:7420")),
            (local, Http, "POST", Some("http://LOCALHOST:7420")),
            (
                "agents.example",
                Https,
                "POST",
                Some("https://agents.example"),
            ),
            (
                "agents.example:443",
                Https,
                "POST",
                Some("https://agents.example"),
            ),
        ] {
            assert!(
                check(host, scheme, method, origin),
                "{host} {method} {origin:?}"
            );
        }
        for (host, scheme, method, origin) in [
            (local, Http, "POST", None),
            (local, Http, "DELETE", None),
            (local, Http, "POST", Some("http://localhost:3000")),
            (local, Http, "GET", Some("http://localhost:3000")),
            (local, Http, "POST", Some("http://localhost")),
            (local, Http, "POST", Some("https://localhost:7420")),
            (local, Http, "POST", Some("null")),
            (local, Http, "POST", Some("http://")),
            ("", Http, "POST", Some("http://")),
            (
                "agents.example",
                Https,
                "POST",
                Some("http://agents.example"),
            ),
            (
                "agents.example",
                Https,
                "GET",
                Some("http://agents.example"),
            ),
            (
                "agents.example",
                Https,
                "POST",
                Some("https://agents.example:8443"),
            ),
            (
                "agents.example",
                Https,
                "POST",
                Some("https://agents.example.evil"),
            ),
        ] {
            assert!(
                !check(host, scheme, method, origin),
                "{host} {method} {origin:?}"
            );
        }
    }

    #[test]
    fn the_token_is_one_of_several_cookies() {
        use RequestScheme::{Http, Https};
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, "a=b; xselvedge_token=c".parse().unwrap());
        assert_eq!(cookie_token(&headers, Http), None);
        headers.append(header::COOKIE, "selvedge_token=slv_1; d=e".parse().unwrap());
        assert_eq!(cookie_token(&headers, Http), Some("slv_1"));
        // A page over HTTP can set only the cookie without the prefix.
        assert_eq!(cookie_token(&headers, Https), None);
        let secure = "__Host-selvedge_token=slv_2".parse().unwrap();
        headers.append(header::COOKIE, secure);
        assert_eq!(cookie_token(&headers, Https), Some("slv_2"));
    }
}
