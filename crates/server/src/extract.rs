//! Reading requests: ids in paths, queries, bodies. What is not as it should be is refused with a
//! code and the name of the part that is wrong.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use everturn_api::Code;
use everturn_core::id::IdError;
use everturn_core::{InputId, PromptId, RunId, SessionId, TokenId, limits};
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::cursor::position;
use crate::problem::{Answer, Refused};
use crate::state::Server;

/// Rows of a page when the client does not say.
const PAGE_ROWS: u32 = 50;

/// An id in a path.
pub(crate) trait PathId: Sized {
    /// What it names, for people.
    const WHAT: &'static str;
    /// Reads it.
    fn read(text: &str) -> Result<Self, IdError>;
}

macro_rules! path_ids {
    ($($name:ident = $what:literal,)*) => {$(
        impl PathId for $name {
            const WHAT: &'static str = $what;
            fn read(text: &str) -> Result<Self, IdError> { Self::new(text) }
        }
    )*};
}

path_ids! {
    SessionId = "session id",
    InputId = "input id",
    RunId = "run id",
    PromptId = "prompt id",
    TokenId = "token id",
}

/// Reads an id, wherever it stands.
pub(crate) fn id<T: PathId>(text: &str) -> Answer<T> {
    T::read(text).map_err(|fault| Refused::new(Code::BadId, format!("the {} {fault}", T::WHAT)))
}

/// The id of a path that has one.
pub(crate) struct Id<T>(pub(crate) T);

impl<T: PathId, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| {
            Refused::new(Code::BadId, format!("the {} is not valid UTF-8", T::WHAT))
        })?;
        let (_, text) = params.iter().next().unwrap_or_default();
        id(text).map(Self)
    }
}

/// A query, taken apart one name at a time; what is left over in the end is refused.
pub(crate) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    pub(crate) fn new(query: Option<&'a str>) -> Self {
        let query = query.unwrap_or_default();
        Self { pairs: form_urlencoded::parse(query.as_bytes()).collect() }
    }

    /// Every value of a name.
    pub(crate) fn all(&mut self, name: &str) -> Vec<Cow<'a, str>> {
        let (found, rest) =
            std::mem::take(&mut self.pairs).into_iter().partition(|(key, _)| key == name);
        self.pairs = rest;
        let found: Vec<(Cow<'_, str>, Cow<'_, str>)> = found;
        found.into_iter().map(|(_, value)| value).collect()
    }

    /// The one value of a name, if it is there.
    pub(crate) fn one(&mut self, name: &str) -> Answer<Option<Cow<'a, str>>> {
        let mut values = self.all(name);
        if values.len() > 1 {
            return Err(Refused::field(name, "given more than once"));
        }
        Ok(values.pop())
    }

    /// A position.
    pub(crate) fn position(&mut self, name: &str) -> Answer<Option<u64>> {
        self.one(name)?.map(|text| position(&text)).transpose()
    }

    /// A whole number.
    pub(crate) fn number(&mut self, name: &str, max: u64) -> Answer<Option<u64>> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match position(&text) {
            Ok(value) if value <= max => Ok(Some(value)),
            _ => Err(Refused::field(name, format_args!("must be a number from 0 to {max}"))),
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, name: &str, default: bool) -> Answer<bool> {
        match self.one(name)?.as_deref() {
            None => Ok(default),
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(_) => Err(Refused::field(name, "must be true or false")),
        }
    }

    /// Rows of a page.
    pub(crate) fn limit(&mut self) -> Answer<u32> {
        let max = limits::PAGE_ROWS_MAX;
        match self.number("limit", u64::from(max)) {
            Ok(None) => Ok(PAGE_ROWS),
            Ok(Some(rows)) if rows > 0 => Ok(u32::try_from(rows).unwrap_or(max)),
            _ => Err(Refused::field("limit", format_args!("must be a number from 1 to {max}"))),
        }
    }

    /// Refuses whatever was not asked for.
    pub(crate) fn finish(self) -> Answer<()> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(64).collect();
                Err(Refused::field(&shown, "this route has no such parameter"))
            }
        }
    }
}

/// The cursor of a stream: `Last-Event-ID`, which a client that comes back sends, else `after`.
pub(crate) fn stream_cursor<'a>(
    headers: &'a HeaderMap,
    query: &mut Query<'a>,
) -> Answer<Option<Cow<'a, str>>> {
    let after = query.one("after")?;
    let mut ids = headers.get_all("last-event-id").iter();
    match (ids.next(), ids.next()) {
        (None, _) => Ok(after),
        (Some(id), None) => {
            let text = id
                .to_str()
                .map_err(|_| Refused::cursor("the Last-Event-ID header is not visible ASCII"))?;
            Ok(Some(Cow::Borrowed(text)))
        }
        (Some(_), Some(_)) => Err(Refused::cursor("there are several Last-Event-ID headers")),
    }
}

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

/// A JSON body that may be left out altogether.
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Server> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, server: &Server) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        media_type(&parts.headers)?;
        let bytes = read(&parts.headers, body, server.config().read_timeout).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Server> for OptionalJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, server: &Server) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body, server.config().read_timeout).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        media_type(&parts.headers)?;
        parse(&bytes).map(Self)
    }
}

/// Only JSON, and only in UTF-8.
fn media_type(headers: &HeaderMap) -> Answer<()> {
    let refused = |detail: String| Refused::new(Code::UnsupportedMediaType, detail);
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Err(refused("the request has no Content-Type".to_owned()));
    };
    let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    if kind != "application/json" {
        let shown: String = kind.chars().take(80).collect();
        return Err(refused(format!("the body is {shown:?}")));
    }
    let charset = parts.find_map(|part| part.strip_prefix("charset="));
    if charset.is_some_and(|charset| charset.trim_matches('"') != "utf-8") {
        return Err(refused("JSON is sent in UTF-8".to_owned()));
    }
    Ok(())
}

async fn read(headers: &HeaderMap, body: Body, timeout: Duration) -> Answer<bytes::Bytes> {
    let max = limits::BODY_BYTES_MAX;
    let too_large =
        || Refused::new(Code::BodyTooLarge, format!("the body has more than {max} bytes"));
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > max as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(timeout, Limited::new(body, max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large()),
        Ok(Err(_)) => Err(Refused::new(Code::BadRequest, "the body broke off")),
        Err(_) => {
            let detail = format!("the body took longer than {} s", timeout.as_secs());
            Err(Refused::new(Code::RequestTimeout, detail))
        }
    }
}

/// Reads an object. The quick way first; what fails is read again the slow way, which knows where.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    use serde_json::error::Category;
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Refused::new(Code::BadJson, "the body is not valid UTF-8"))?;
    // A struct would also be read from a list of its fields, which nobody means.
    let is_object = text.trim_ascii_start().starts_with('{');
    if is_object && let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    let broken = |error: &serde_json::Error| {
        Refused::new(Code::BadJson, format!("the body is not JSON: {error}"))
    };
    if !is_object {
        return Err(match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => Refused::new(Code::BadRequest, "the body is not a JSON object"),
            Err(error) => broken(&error),
        });
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Ok(value) => reader.end().map(|()| value).map_err(|error| broken(&error)),
        Err(error) => {
            let path = error.path().to_string();
            let error = error.into_inner();
            match error.classify() {
                Category::Data if path == "." => {
                    Err(Refused::new(Code::BadRequest, error.to_string()))
                }
                Category::Data => Err(Refused::field(&path, error)),
                _ => Err(broken(&error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use everturn_api::request::SubmitInput;

    use super::*;

    fn fault(text: &str) -> (String, String) {
        let refused = parse::<SubmitInput>(text.as_bytes()).err().unwrap();
        (refused.problem().code.clone(), refused.problem().detail.clone())
    }

    #[test]
    fn broken_json_and_wrong_fields_are_told_apart_and_the_field_is_named() {
        for broken in
            ["", "{", "{\"text\":}", "nonsense", "{\"text\":\"a\"} x", "{\"text\":\"\\x\"}"]
        {
            assert_eq!(fault(broken).0, "bad_json", "{broken}");
        }
        for (body, named) in [
            (r#"{"txet": "a"}"#, "txet"),
            (r#"{"text": 5}"#, "text"),
            (r#"{"text": "a", "text": "b"}"#, "text"),
            (r#"{"content": [{"type": "text", "text": "a", "more": 1}]}"#, "content[0]"),
            (r#"{"content": [{"type": "sound"}]}"#, "content[0]"),
            (r#"{"text": "a", "mode": []}"#, "mode"),
            ("[]", "object"),
            ("\"text\"", "object"),
        ] {
            let (code, detail) = fault(body);
            assert_eq!(code, "bad_request", "{body}");
            assert!(detail.contains(named), "{body}: {detail}");
        }
        assert_eq!(
            parse::<SubmitInput>(&[b'{', 0xff, b'}']).err().unwrap().problem().code,
            "bad_json"
        );
        let deep = format!("{{\"metadata\": {}1{}}}", "[".repeat(500), "]".repeat(500));
        assert!(parse::<SubmitInput>(deep.as_bytes()).is_ok(), "kept as text, not read");
    }

    #[test]
    fn a_query_is_read_to_its_end() {
        let mut query = Query::new(Some("limit=7&after=3&session=a&session=b&viewer=false"));
        assert_eq!(query.limit().unwrap(), 7);
        assert_eq!(query.position("after").unwrap(), Some(3));
        assert_eq!(query.all("session"), ["a", "b"]);
        assert!(!query.flag("viewer", true).unwrap());
        query.finish().unwrap();
        for (text, code) in [
            ("limit=0", "bad_request"),
            ("limit=501", "bad_request"),
            ("limit=", "bad_request"),
            ("limit=1&limit=2", "bad_request"),
            ("after=abc", "bad_cursor"),
            ("after=", "bad_cursor"),
            ("viewer=maybe", "bad_request"),
            ("other=1", "bad_request"),
        ] {
            let mut query = Query::new(Some(text));
            let read = query
                .limit()
                .and_then(|_| query.position("after"))
                .and_then(|_| query.flag("viewer", true))
                .and_then(|_| query.finish());
            assert_eq!(read.unwrap_err().problem().code, code, "{text}");
        }
    }
}
