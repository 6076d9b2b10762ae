//! Sending an input: the one route that everything else exists for.

use axum::Json as JsonReply;
use axum::extract::State;
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use everturn_api::content::ContentPart;
use everturn_api::input::{Receipt, WaitingFor};
use everturn_api::request::SubmitInput;
use everturn_api::{Code, content};
use everturn_core::{Content, InputStatus, Mode, Part, RequestId, SessionId, SessionKey, limits};
use everturn_engine::{EngineError, Submission};
use everturn_store::op::Admitted;
use http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;

use super::key;
use super::sessions::check_metadata_bytes;
use crate::access::Submitter;
use crate::extract::{Id, Json};
use crate::problem::{Answer, Refused};
use crate::state::Server;
use crate::wire;

/// Parts of a content list.
const PARTS_MAX: usize = 256;
/// Bytes of an image's address.
const URL_BYTES_MAX: usize = 8 << 10;

/// Sends an input
#[utoipa::path(post, path = "/v1/sessions/{id}/inputs", tag = "inputs",
    params(
        ("id" = String, Path, description = "Session id; one that nobody has seen becomes a session"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `request_id`"),
    ),
    request_body = SubmitInput,
    responses((status = 202, body = Receipt, description = "It is durable")))]
pub(super) async fn submit(
    State(server): State<Server>,
    Submitter(caller): Submitter,
    Id(session): Id<SessionId>,
    headers: HeaderMap,
    Json(body): Json<SubmitInput>,
) -> Answer<impl IntoResponse> {
    let request_id = match request_id(&headers, body.request_id.as_deref())? {
        Some(id) => id,
        None => RequestId::from_uuid(server.engine().clock().uuid()),
    };
    let mode = match body.mode.as_deref() {
        None => Mode::Queue,
        Some(word) => Mode::parse(word).ok_or_else(|| {
            let shown: String = word.chars().take(40).collect();
            Refused::new(Code::BadMode, format!("there is no mode {shown:?}"))
        })?,
    };
    let content = read_content(body.text, body.content)?;
    let metadata = body.metadata.as_deref().map(read_metadata).transpose()?;
    if matches!(mode, Mode::Steer | Mode::Redirect) {
        return Err(Refused::not_built(&format!("mode {mode}"))
            .hint("mode interrupt stops the running turn and runs this first"));
    }
    let key = key(&caller.principal, session);
    require_space(&server, &key, &request_id).await?;
    let submission = Submission { key, request_id, mode, content, metadata };
    let admitted = server.engine().submit(submission).await?;
    Ok((StatusCode::ACCEPTED, JsonReply(receipt(&server, &admitted).await)))
}

/// A receipt, with the process that is waited for where that is another one.
async fn receipt(server: &Server, admitted: &Admitted) -> Receipt {
    let mut receipt = Receipt::new(&admitted.input, admitted.position, admitted.replayed);
    if admitted.input.status == InputStatus::Queued
        && let Some(lease) = wire::other_holder(server, admitted.holder.as_ref()).await
    {
        receipt.waiting_for =
            Some(WaitingFor { node: lease.holder.to_string(), since: lease.since.rfc3339() });
    }
    receipt
}

/// While there is little space, only what is there already is answered.
async fn require_space(server: &Server, key: &SessionKey, request: &RequestId) -> Answer<()> {
    if !server.disk().is_low() {
        return Ok(());
    }
    match server.engine().read().input_by_identity(key, request).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => server.disk().require_space(),
        Err(error) => Err(EngineError::from(error).into()),
    }
}

/// Header and body name one identity.
fn request_id(headers: &HeaderMap, body: Option<&str>) -> Answer<Option<RequestId>> {
    let read = |where_: &str, text: &str| {
        RequestId::new(text)
            .map_err(|fault| Refused::new(Code::BadRequestId, format!("{where_} {fault}")))
    };
    let mut values = headers.get_all("idempotency-key").iter();
    let header = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| {
                Refused::new(Code::BadRequestId, "the Idempotency-Key is not visible ASCII")
            })?;
            Some(read("the Idempotency-Key", text)?)
        }
        (Some(_), Some(_)) => {
            return Err(Refused::new(Code::BadRequestId, "there are several Idempotency-Keys"));
        }
    };
    let body = body.map(|text| read("request_id", text)).transpose()?;
    match (header, body) {
        (Some(header), Some(body)) if header != body => Err(Refused::new(
            Code::RequestIdMismatch,
            format!("the Idempotency-Key is {header}, request_id is {body}"),
        )),
        (header, body) => Ok(header.or(body)),
    }
}

fn read_content(text: Option<String>, parts: Option<Vec<ContentPart>>) -> Answer<Content> {
    let content = match (text, parts) {
        (Some(text), None) => Content::text(text),
        (None, Some(parts)) => content::domain(parts),
        (Some(_), Some(_)) => return Err(Refused::field("text", "not together with content")),
        (None, None) => return Err(Refused::field("text", "one of text and content is needed")),
    };
    if content.0.len() > PARTS_MAX {
        return Err(Refused::field("content", format_args!("has more than {PARTS_MAX} parts")));
    }
    let text_bytes: usize = content
        .0
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.len(),
            Part::Image { .. } => 0,
        })
        .sum();
    if text_bytes > limits::TEXT_BYTES_MAX {
        let detail = format!("the text has {text_bytes} bytes");
        return Err(Refused::new(Code::TextTooLarge, detail));
    }
    for (index, part) in content.0.iter().enumerate() {
        if let Part::Image { media_type, data, url } = part {
            check_image(media_type, data.as_deref(), url.as_deref())
                .map_err(|fault| Refused::field(&format!("content[{index}]"), fault))?;
        }
    }
    if content.is_blank() {
        return Err(Refused::new(Code::EmptyInput, "there is nothing but white space in it"));
    }
    Ok(content)
}

fn check_image(
    media_type: &str,
    data: Option<&str>,
    url: Option<&str>,
) -> Result<(), &'static str> {
    let subtype = media_type.strip_prefix("image/").unwrap_or_default();
    let is_subtype = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if subtype.is_empty() || subtype.len() > 64 || !subtype.chars().all(is_subtype) {
        return Err("media_type must be image/…");
    }
    match (data, url) {
        (Some(data), None) => {
            if data.is_empty() || STANDARD.decode(data).is_err() {
                return Err("data must be base64");
            }
        }
        (None, Some(url)) => {
            let is_web = ["https://", "http://"]
                .iter()
                .any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
            if !is_web || url.len() > URL_BYTES_MAX || url.chars().any(char::is_whitespace) {
                return Err("url must be an http or https address");
            }
        }
        _ => return Err("an image has exactly one of data and url"),
    }
    Ok(())
}

fn read_metadata(raw: &RawValue) -> Answer<String> {
    let text = raw.get();
    check_metadata_bytes(text.len())?;
    // Read once, so that whoever reads it later can.
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(Refused::field("metadata", "must be an object")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn header_and_body_are_one_identity() {
        let of = |header: &[&str], body: Option<&str>| {
            let mut headers = HeaderMap::new();
            for value in header {
                headers.append("idempotency-key", value.parse().unwrap());
            }
            request_id(&headers, body)
                .map(|id| id.map(|id| id.to_string()))
                .map_err(|refused| refused.problem().code.clone())
        };
        assert_eq!(of(&[], None), Ok(None));
        assert_eq!(of(&["a"], None), Ok(Some("a".to_owned())));
        assert_eq!(of(&[], Some("a")), Ok(Some("a".to_owned())));
        assert_eq!(of(&["a"], Some("a")), Ok(Some("a".to_owned())));
        assert_eq!(of(&["a"], Some("b")), Err("request_id_mismatch".to_owned()));
        let long = "k".repeat(256);
        for bad in [&["a b"][..], &[""], &["a", "a"], &[&long]] {
            assert_eq!(of(bad, None), Err("bad_request_id".to_owned()), "{bad:?}");
        }
        for bad in ["", "ü", "a\nb"] {
            assert_eq!(of(&[], Some(bad)), Err("bad_request_id".to_owned()), "{bad:?}");
        }
        assert!(of(&[&"k".repeat(255)], None).is_ok());
    }

    #[test]
    fn images_are_checked() {
        assert_eq!(check_image("image/png", Some("aGk="), None), Ok(()));
        assert_eq!(check_image("image/svg+xml", None, Some("https://x.example/a")), Ok(()));
        for (kind, data, url) in [
            ("text/html", Some("aGk="), None),
            ("image/", Some("aGk="), None),
            ("image/png", None, None),
            ("image/png", Some("aGk="), Some("https://x.example/a")),
            ("image/png", Some("not base64!"), None),
            ("image/png", Some(""), None),
            ("image/png", None, Some("file:///etc/passwd")),
            ("image/png", None, Some("https://")),
        ] {
            assert!(check_image(kind, data, url).is_err(), "{kind} {data:?} {url:?}");
        }
    }
}
