//! All routes, and the OpenAPI document that is generated from them.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use selvedge_http::{AllowedHosts, TrustedProxies};
use selvedge_protocol::TokenScope;
use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;

use crate::admission::{RequestAdmission, admit};
use crate::api_error::ApiError;
use crate::caller::Caller;
use crate::state::SharedState;

/// Name of the security scheme in the OpenAPI document.
const BEARER: &str = "token";

#[derive(utoipa::OpenApi)]
#[openapi(info(
    title = "Selvedge",
    description = "Sessions of agents, their events, approvals, documents and channels.",
))]
struct ApiDescription;

/// Returns the routes of the API, and the OpenAPI document as JSON.
fn documented_routes() -> (Router<SharedState>, String) {
    let description = <ApiDescription as utoipa::OpenApi>::openapi();
    let sessions = OpenApiRouter::new()
        .merge(crate::session_routes::routes())
        .merge(crate::change_routes::routes())
        .merge(crate::message_routes::routes())
        .merge(crate::run_routes::routes())
        .merge(crate::turn_routes::routes())
        .merge(crate::replay_routes::routes())
        .merge(crate::resume_routes::routes())
        .merge(crate::check_routes::routes())
        .merge(crate::status_routes::routes());
    let memory = OpenApiRouter::new()
        .merge(crate::memory_routes::routes())
        .merge(crate::lesson_routes::routes());
    let openai = OpenApiRouter::new()
        .merge(crate::openai::routes())
        .merge(crate::chat_completions::routes())
        .merge(crate::responses::routes());
    let api = OpenApiRouter::new()
        .merge(crate::workspace_routes::routes())
        .merge(with_scope(TokenScope::Sessions, sessions))
        .merge(with_scope(
            TokenScope::Approvals,
            crate::approval_routes::routes(),
        ))
        .merge(with_scope(
            TokenScope::Documents,
            crate::document_routes::routes(),
        ))
        .merge(with_scope(
            TokenScope::Channels,
            crate::channel_routes::routes(),
        ))
        .merge(with_scope(TokenScope::Memory, memory))
        .merge(crate::render_routes::routes());
    let (router, mut description) = OpenApiRouter::with_openapi(description)
        .nest("/api/v1", api)
        .merge(with_scope(TokenScope::Sessions, openai))
        .merge(crate::health_routes::routes())
        .merge(crate::login_routes::routes())
        .split_for_parts();
    description.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = description.components.get_or_insert_with(Components::new);
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    let no_scopes: [String; 0] = [];
    description.security = Some(vec![SecurityRequirement::new(BEARER, no_scopes)]);
    let mut document = serde_json::to_value(&description).unwrap_or_default();
    describe_responses(&mut document);
    (router, format!("{document:#}"))
}

/// Refuses requests whose token does not have a scope, before a handler reads anything of them.
fn with_scope(scope: TokenScope, routes: OpenApiRouter<SharedState>) -> OpenApiRouter<SharedState> {
    let check = move |caller: Caller, request: Request, next: Next| async move {
        match caller.require(scope) {
            Ok(()) => next.run(request).await,
            Err(error) => error.into_response(),
        }
    };
    routes.route_layer(axum::middleware::from_fn(check))
}

/// Adds the descriptions of responses, which OpenAPI requires: they are the same everywhere.
fn describe_responses(document: &mut Value) {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let operations = paths.flat_map(|(_, path)| path.as_object_mut().into_iter().flatten());
    let responses = operations.flat_map(|(_, operation)| {
        let responses = operation["responses"].as_object_mut();
        responses.into_iter().flatten()
    });
    for (status, response) in responses {
        if let Some(fields) = response.as_object_mut() {
            let description = match status.starts_with('2') {
                true => "Success",
                false => "Error",
            };
            let own = fields.entry("description").or_insert(Value::Null);
            if own.as_str().is_none_or(str::is_empty) {
                *own = description.into();
            }
        }
    }
}

/// Returns the OpenAPI document of the API, as JSON.
pub fn openapi_json() -> String {
    documented_routes().1
}

/// Returns the router of a server.
pub(crate) fn router(state: SharedState, hosts: AllowedHosts, proxies: TrustedProxies) -> Router {
    let (router, document) = documented_routes();
    let document: Arc<str> = document.into();
    let openapi = async move || {
        let json = "application/json";
        ([(header::CONTENT_TYPE, json)], document.to_string()).into_response()
    };
    let admission = RequestAdmission {
        state: state.clone(),
        hosts: Arc::new(hosts),
        proxies: Arc::new(proxies),
    };
    let router = router
        .route("/openapi.json", get(openapi))
        .merge(crate::page::routes())
        .fallback(async || ApiError::not_found("such path").hint("see /openapi.json"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(axum::middleware::from_fn_with_state(admission, admit))
        .with_state(state);
    Router::new()
        .fallback_service(router)
        .layer(axum::middleware::map_response(hide_methods))
}

/// Removes the methods of a path from a response to a client without a token: its status is one of
/// these.
async fn hide_methods(mut response: Response) -> Response {
    let refused = [
        StatusCode::BAD_REQUEST,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
    ];
    if refused.contains(&response.status()) {
        response.headers_mut().remove(header::ALLOW);
    }
    response
}
