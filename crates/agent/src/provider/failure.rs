//! What went wrong with a request, told from what the client library, the connection and the
//! provider's own words say.

use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::{ProviderError, ProviderErrorKind};

/// Characters of a provider's own words that a message keeps.
const WORDS_CHARS_MAX: usize = 500;

/// A key. It never shows itself.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub(crate) fn new(key: String) -> Self {
        Self(key)
    }

    /// The key, for the request and nothing else.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The text with the key struck out: some servers quote it in their errors.
    fn strike(&self, text: &str) -> String {
        // A very short "key" is a placeholder, and striking it would garble everything.
        if self.0.len() < 6 { text.to_owned() } else { text.replace(&self.0, "(key)") }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(key)")
    }
}

/// What an error message is made with.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    /// Scheme, host and port of the provider; nothing else of its address is ever shown.
    pub(super) origin: String,
    /// Struck out of everything.
    pub(super) key: Option<Secret>,
    /// Whether anything of the answer has come.
    pub(super) begun: bool,
}

impl ProviderErrorKind {
    /// The kind of an HTTP status, with what the server says about it.
    pub(crate) fn of_status(status: u16, words: &str) -> Self {
        match status {
            401 | 403 => Self::Unauthorized,
            404 | 405 | 410 | 300..=399 => Self::Misconfigured,
            408 | 425 | 500..=599 => Self::Unavailable,
            429 => Self::RateLimited,
            _ if tells_too_long(words) => Self::TooLong,
            _ => Self::Refused,
        }
    }

    /// The kind of an error that a provider sends where an answer should be.
    fn of_words(words: &str) -> Self {
        let words_lower = words.to_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| words_lower.contains(part));
        if tells_too_long(words) {
            Self::TooLong
        } else if has(&["rate_limit", "rate limit", "too many requests", "resource_exhausted"]) {
            Self::RateLimited
        } else if has(&["authentication", "unauthorized", "permission", "invalid api key"]) {
            Self::Unauthorized
        } else if has(&["invalid_request", "invalid_argument", "bad request", "does not support"]) {
            Self::Refused
        } else if has(&["not_found", "model not found"]) {
            Self::Misconfigured
        } else {
            // An error in the middle of an answer is the server's own, mostly overload.
            Self::Unavailable
        }
    }
}

/// Whether a refusal says that the conversation does not fit the model.
fn tells_too_long(words: &str) -> bool {
    let words = words.to_lowercase();
    [
        "context_length_exceeded",
        "context length",
        "context window",
        "context size",
        "maximum context",
        "prompt is too long",
        "input is too long",
        "too many tokens",
        "too many input tokens",
        "maximum number of tokens",
        "token count exceeds",
        "reduce the length of the messages",
        "exceeds the limit of tokens",
    ]
    .iter()
    .any(|part| words.contains(part))
}

/// What the server asks us to wait: `retry-after-ms`, or `Retry-After` as seconds or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(ms) = text("retry-after-ms").and_then(|ms| ms.trim().parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1_000.0).ok();
    }
    let value = text("retry-after")?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(now).unwrap_or(Duration::ZERO))
}

/// What a person should read of a server's error body.
fn words_of(body: &str) -> String {
    let words = match serde_json::from_str::<Value>(body) {
        Ok(json) => words_of_json(&json).unwrap_or_else(|| json.to_string()),
        Err(_) => body.to_owned(),
    };
    let words: String =
        words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(WORDS_CHARS_MAX) {
        Some((at, _)) => format!("{} …", &words[..at]),
        None => words,
    }
}

/// The places where providers put their message.
fn words_of_json(json: &Value) -> Option<String> {
    if let Value::Array(items) = json {
        return items.first().and_then(words_of_json);
    }
    ["/error/message", "/error/error/message", "/message", "/error", "/detail"]
        .iter()
        .filter_map(|place| json.pointer(place))
        .find_map(Value::as_str)
        .filter(|text| !text.trim().is_empty())
        .map(str::to_owned)
}

/// The innermost cause of an error: the outer ones repeat the address.
pub(super) fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

impl Teller {
    /// An error with this message, the key struck out.
    pub(super) fn tell(&self, kind: ProviderErrorKind, message: &str) -> ProviderError {
        let message = match &self.key {
            Some(key) => key.strike(message),
            None => message.to_owned(),
        };
        ProviderError { kind, message, retry_after: None }
    }

    /// The stream ended without saying that it was complete.
    pub(super) fn unfinished(&self) -> ProviderError {
        let origin = &self.origin;
        if self.begun {
            self.tell(
                ProviderErrorKind::Broken,
                &format!("{origin} ended the answer before it was complete"),
            )
        } else {
            self.tell(
                ProviderErrorKind::Unavailable,
                &format!(
                    "{origin} ended the connection without an answer; if it always does, check \
                     that the address is that of the provider's API"
                ),
            )
        }
    }

    /// Nothing came for so long.
    pub(super) fn stalled(&self, limit: Duration) -> ProviderError {
        let what = if self.begun { "nothing more" } else { "nothing" };
        self.tell(
            ProviderErrorKind::Stalled,
            &format!("{} sent {what} for {} s", self.origin, limit.as_secs_f64()),
        )
    }

    /// An error that came in the place of a piece of the answer.
    pub(super) fn sent(&self, body: &Value) -> ProviderError {
        let words = body
            .as_str()
            .map_or_else(|| words_of_json(body).unwrap_or_else(|| body.to_string()), str::to_owned);
        // The kind may stand beside the message, as `type` or `code`.
        let kind = match body
            .get("code")
            .and_then(Value::as_u64)
            .and_then(|code| u16::try_from(code).ok())
        {
            Some(status @ 400..=599) => ProviderErrorKind::of_status(status, &words),
            _ => ProviderErrorKind::of_words(&body.to_string()),
        };
        self.tell(kind, &format!("{} sent an error: {}", self.origin, words_of(&words)))
    }

    /// An HTTP status that is not success.
    fn status(&self, status: u16, headers: Option<&HeaderMap>, body: &str) -> ProviderError {
        let words = words_of(body);
        let mut message = format!("{} answered HTTP {status}", self.origin);
        if (300..=399).contains(&status) {
            message.push_str(" (it redirects; use the address that it redirects to)");
        }
        if !words.is_empty() {
            message.push_str(": ");
            message.push_str(&words);
        }
        let mut error = self.tell(ProviderErrorKind::of_status(status, body), &message);
        error.retry_after = headers.and_then(|headers| retry_after(headers, SystemTime::now()));
        error
    }

    /// An error of the HTTP client.
    fn transport(&self, error: &reqwest::Error) -> ProviderError {
        let (origin, cause) = (&self.origin, root(error));
        if let Some(status) = error.status() {
            return self.status(status.as_u16(), None, "");
        }
        if error.is_builder() || error.is_redirect() {
            return self
                .tell(ProviderErrorKind::Misconfigured, &format!("cannot ask {origin}: {cause}"));
        }
        if self.begun {
            self.tell(
                ProviderErrorKind::Broken,
                &format!("the connection to {origin} broke in the middle of the answer: {cause}"),
            )
        } else if error.is_connect() {
            self.tell(ProviderErrorKind::Unavailable, &format!("cannot reach {origin}: {cause}"))
        } else {
            self.tell(
                ProviderErrorKind::Unavailable,
                &format!("the connection to {origin} broke: {cause}"),
            )
        }
    }

    /// An error of what carries the stream.
    fn stream(&self, error: genai::BoxError) -> ProviderError {
        let error = match error.downcast::<genai::Error>() {
            Ok(error) => return self.library(*error),
            Err(error) => error,
        };
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return self.transport(error);
        }
        if let Some(error) = error.downcast_ref::<std::string::FromUtf8Error>() {
            // A character that is merely unfinished is a stream that is.
            if error.utf8_error().error_len().is_none() {
                return self.unfinished();
            }
        }
        self.malformed(&root(error.as_ref()))
    }

    fn malformed(&self, cause: &str) -> ProviderError {
        let message = format!("{} sent something that is no answer: {cause}", self.origin);
        self.tell(ProviderErrorKind::Malformed, &message)
    }

    /// An error of the client library. Its own text is used only where it cannot hold the request.
    pub(super) fn library(&self, error: genai::Error) -> ProviderError {
        use ProviderErrorKind as K;
        use genai::Error as E;
        match error {
            E::HttpError { status, body, headers, .. } => {
                self.status(status.as_u16(), Some(&headers), &body)
            }
            E::WebModelCall { webc_error, .. } | E::WebAdapterCall { webc_error, .. } => {
                match webc_error {
                    genai::webc::Error::ResponseFailedStatus { status, body, headers } => {
                        self.status(status.as_u16(), Some(&headers), &body)
                    }
                    genai::webc::Error::Reqwest(error) => self.transport(&error),
                    genai::webc::Error::ResponseFailedNotJson { .. }
                    | genai::webc::Error::ResponseFailedInvalidJson { .. } => {
                        self.malformed("it is not JSON")
                    }
                    genai::webc::Error::JsonValueExt(error) => self.malformed(&error.to_string()),
                }
            }
            E::WebStream { error, .. } => self.stream(error),
            E::ChatResponse { body, .. } => self.sent(&body),
            E::StreamParse { serde_error, .. } => match serde_error.classify() {
                serde_json::error::Category::Eof => self.unfinished(),
                // The library hands a provider's own error on in this shape.
                serde_json::error::Category::Data => {
                    self.sent(&Value::String(serde_error.to_string()))
                }
                _ => self.malformed(&serde_error.to_string()),
            },
            E::JsonValueExt(error) => self.malformed(&error.to_string()),
            E::SerdeJson(error) => self.malformed(&error.to_string()),
            E::InvalidJsonResponseElement { info } => self.malformed(info),
            E::NoChatResponse { .. } => self.malformed("it is empty"),
            E::RequiresApiKey { .. }
            | E::NoAuthResolver { .. }
            | E::NoAuthData { .. }
            | E::Resolver { .. } => self.tell(K::Unauthorized, "no key for this provider"),
            E::ClientBuildFail { cause } | E::Internal(cause) => {
                self.tell(K::Misconfigured, &format!("cannot ask {}: {cause}", self.origin))
            }
            E::MessageContentTypeNotSupported { cause, .. } => self.tell(K::Refused, cause),
            E::AdapterNotSupported { feature, .. } => {
                self.tell(K::Refused, &format!("this provider does not support {feature}"))
            }
            _ => self.tell(K::Refused, "the client library refused the request"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ProviderErrorKind as K;

    fn teller() -> Teller {
        Teller {
            origin: "http://host".to_owned(),
            key: Some(Secret::new("sk-12345678".to_owned())),
            begun: false,
        }
    }

    #[test]
    fn statuses() {
        for (status, words, kind) in [
            (400, "model is odd", K::Refused),
            (400, "This model's maximum context length is 8192 tokens", K::TooLong),
            (400, "prompt is too long: 210000 tokens > 200000 maximum", K::TooLong),
            (401, "", K::Unauthorized),
            (403, "", K::Unauthorized),
            (404, "", K::Misconfigured),
            (408, "", K::Unavailable),
            (413, "request_too_large", K::Refused),
            (413, "the input exceeds the context window", K::TooLong),
            (422, "", K::Refused),
            (429, "context window", K::RateLimited),
            (500, "", K::Unavailable),
            (503, "", K::Unavailable),
            (529, "overloaded", K::Unavailable),
            (302, "", K::Misconfigured),
        ] {
            assert_eq!(K::of_status(status, words), kind, "{status} {words}");
        }
    }

    #[test]
    fn errors_in_the_place_of_an_answer() {
        for (body, kind) in [
            (
                serde_json::json!({"type": "overloaded_error", "message": "Overloaded"}),
                K::Unavailable,
            ),
            (serde_json::json!({"code": 429, "message": "slow down"}), K::RateLimited),
            (serde_json::json!({"code": "rate_limit_exceeded", "message": "slow"}), K::RateLimited),
            (serde_json::json!({"code": "context_length_exceeded", "message": "x"}), K::TooLong),
            (serde_json::json!({"type": "invalid_request_error", "message": "x"}), K::Refused),
            (serde_json::json!({"type": "authentication_error", "message": "x"}), K::Unauthorized),
            (serde_json::json!("model requires more system memory"), K::Unavailable),
        ] {
            assert_eq!(teller().sent(&body).kind, kind, "{body}");
        }
    }

    #[test]
    fn waits_are_read_in_every_form() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (name, value, wait) in [
            ("retry-after", "7", Some(7_000)),
            ("retry-after", "1.5", Some(1_500)),
            ("retry-after-ms", "250", Some(250)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("retry-after", "soon", None),
            ("retry-after", "-3", None),
            ("retry-after", "1e300", None),
            ("x-other", "7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(retry_after(&headers, now), wait.map(Duration::from_millis), "{value}");
        }
    }

    #[test]
    fn the_words_of_many_servers() {
        for (body, words) in [
            (r#"{"error":{"message":"no such model","type":"x"}}"#, "no such model"),
            (r#"{"error":"model 'x' not found"}"#, "model 'x' not found"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (r#"[{"error":{"message":"quota"}}]"#, "quota"),
            (r#"{"odd":1}"#, r#"{"odd":1}"#),
            ("<html>\n <b>Bad\tGateway</b>\r\n</html>", "<html> <b>Bad Gateway</b> </html>"),
            ("", ""),
        ] {
            assert_eq!(words_of(body), words);
        }
        assert!(words_of(&"ä".repeat(10_000)).chars().count() < 600);
    }

    #[test]
    fn a_key_is_struck_out() {
        let error = teller().status(401, None, r#"{"error":{"message":"bad key sk-12345678!"}}"#);
        assert!(error.message.contains("bad key (key)!"), "{}", error.message);
        assert_eq!(format!("{:?}", teller().key), "Some((key))");
    }
}
