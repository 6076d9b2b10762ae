//! The one gate that every request passes: limits on its headers, where it comes from, who sends
//! it, how often; then what is measured and what every answer carries.

use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use everturn_api::Code;
use futures::FutureExt as _;
use http::{HeaderName, HeaderValue, Method, header};
use tracing::Instrument as _;

use crate::config::HEADER_BYTES_MAX;
use crate::problem::{Answer, Refused, StoreFailed};
use crate::state::Server;

/// The address of whoever opened the connection; stands in a request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// What anybody may have: the page itself, which holds nothing of anyone's, the way in, and the
/// sign of life.
fn is_public(method: &Method, path: &str) -> bool {
    match path {
        "/healthz" | "/" => true,
        "/v1/login" | "/v1/logout" => method == Method::POST,
        _ => path.starts_with("/assets/") || path.starts_with("/docs/errors/"),
    }
}

/// The gate.
pub(crate) async fn guard(
    State(server): State<Server>,
    matched: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let method = method_word(request.method());
    let route = matched.as_ref().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = tracing::debug_span!("request", method, route);
    let mut response = answer(&server, request, next).instrument(span).await;
    if let Some(StoreFailed(kind)) = response.extensions().get() {
        server.health().store_failed(*kind);
    }
    dress(&mut response);
    measure(method, route, &response, started);
    response
}

async fn answer(server: &Server, mut request: Request, next: Next) -> Response {
    if let Err(refused) = admit(server, &mut request).await {
        return refused.into_response();
    }
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(panic = text, "a request made the server panic");
            Refused::new(Code::Internal, "the server made a mistake").into_response()
        }
    }
}

async fn admit(server: &Server, request: &mut Request) -> Answer<()> {
    let line = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if line + fields > HEADER_BYTES_MAX {
        let detail = format!("line and headers have more than {HEADER_BYTES_MAX} bytes");
        return Err(Refused::new(Code::HeadersTooLarge, detail));
    }
    let public = is_public(request.method(), request.uri().path());
    let access = server.access();
    access.hosts.check(request, public)?;
    if public {
        return Ok(());
    }
    let peer: Option<IpAddr> = request.extensions().get().map(|Peer(addr)| addr.ip());
    let caller = access.authenticate(request.headers(), peer).await?;
    access.count(&caller.principal)?;
    request.extensions_mut().insert(caller);
    Ok(())
}

/// Headers that every answer carries, unless it has its own.
fn dress(response: &mut Response) {
    const DRESS: [(HeaderName, HeaderValue); 5] = [
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    let headers = response.headers_mut();
    for (name, value) in DRESS {
        headers.entry(name).or_insert(value);
    }
}

fn measure(method: &'static str, route: String, response: &Response, started: Instant) {
    let status = response.status();
    let took = started.elapsed();
    if status.is_server_error() && status != http::StatusCode::NOT_IMPLEMENTED {
        tracing::warn!(method, route, status = status.as_u16(), ?took, "a request failed");
    } else {
        tracing::debug!(method, route, status = status.as_u16(), ?took, "answered");
    }
    metrics::histogram!(
        "everturn_http_request_duration_seconds",
        "method" => method,
        "route" => route.clone()
    )
    .record(took.as_secs_f64());
    metrics::counter!(
        "everturn_http_requests_total",
        "method" => method,
        "route" => route,
        "status" => status.as_str().to_owned()
    )
    .increment(1);
}

/// A closed set of words, so that no client can grow the metrics.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_page_the_way_in_and_the_sign_of_life_is_public() {
        for (method, path) in [
            (Method::GET, "/"),
            (Method::GET, "/healthz"),
            (Method::GET, "/assets/app.js"),
            (Method::GET, "/docs/errors/bad_id"),
            (Method::POST, "/v1/login"),
            (Method::POST, "/v1/logout"),
        ] {
            assert!(is_public(&method, path), "{path}");
        }
        for path in
            ["/readyz", "/metrics", "/openapi.json", "/v1/info", "/v1/sessions", "/v1/login", "/x"]
        {
            assert!(!is_public(&Method::GET, path), "{path}");
        }
    }
}
