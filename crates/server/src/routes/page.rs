//! The page and its files, and the pages that explain the error codes: all of them part of the
//! program, none of them anybody's data.

use axum::response::{IntoResponse as _, Response};
use everturn_api::Code;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::extract::{Id, PathId};
use crate::problem::{Answer, Refused};

#[derive(RustEmbed)]
#[folder = "../../web/page"]
#[allow_missing = true]
struct Page;

#[derive(RustEmbed)]
#[folder = "../../docs/errors"]
#[allow_missing = true]
struct ErrorPages;

/// What the page may load and do: what this server gives it, and nothing else.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
);

/// A name of a file: the rule of ids, so that none leads anywhere else.
pub(super) struct FileName(String);

impl PathId for FileName {
    const WHAT: &'static str = "file name";
    fn read(text: &str) -> Result<Self, everturn_core::id::IdError> {
        everturn_core::InputId::new(text).map(|name| Self(name.to_string()))
    }
}

/// The page
#[utoipa::path(get, path = "/", tag = "page", security(()),
    responses((status = 200, body = String, content_type = "text/html")))]
pub(super) async fn index(headers: HeaderMap) -> Answer<Response> {
    file(Page::get("index.html"), "index.html", &headers)
}

/// A file of the page
#[utoipa::path(get, path = "/assets/{name}", tag = "page", security(()),
    params(("name" = String, Path, description = "File name")),
    responses((status = 200, body = String, content_type = "application/octet-stream")))]
pub(super) async fn asset(Id(name): Id<FileName>, headers: HeaderMap) -> Answer<Response> {
    file(Page::get(&name.0), &name.0, &headers)
}

/// What an error code means and what to do
#[utoipa::path(get, path = "/docs/errors/{code}", tag = "page", security(()),
    params(("code" = String, Path, description = "Code")),
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn error_page(Id(code): Id<FileName>, headers: HeaderMap) -> Answer<Response> {
    let name = format!("{}.md", code.0);
    file(ErrorPages::get(&name), &name, &headers)
}

fn file(found: Option<EmbeddedFile>, name: &str, headers: &HeaderMap) -> Answer<Response> {
    use std::fmt::Write as _;
    let Some(file) = found else {
        return Err(Refused::new(Code::NotFound, format!("there is no file {name}")));
    };
    let mut tag = String::from("\"");
    for byte in &file.metadata.sha256_hash()[..16] {
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    let is_known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|known| matches!(known.trim().trim_start_matches("W/"), known if known == tag || known == "*"));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = Response::new(axum::body::Body::from(file.data.into_owned()));
        response.headers_mut().insert(header::CONTENT_TYPE, media_type(name));
        response
    };
    let own = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        own.insert(header::ETAG, tag);
    }
    // Kept, but asked for again each time: a new version of the program shows at once.
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    own.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    Ok(response)
}

fn media_type(name: &str) -> HeaderValue {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    HeaderValue::from_static(match extension {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "json" | "webmanifest" => "application/json",
        "woff2" => "font/woff2",
        "md" | "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    })
}
