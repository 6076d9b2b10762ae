//! The digest that tells whether a repeated request says the same thing (promise P2).

use sha2::{Digest as _, Sha256};

use crate::content::{Content, Part};
use crate::input::{InputKind, Mode};

/// SHA-256 of an input's canonical payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// Digests what a sender said: kind, mode, content and metadata (as canonical JSON text).
///
/// Each field is preceded by its length, so that no two payloads share an encoding; a version byte
/// starts it, so that a later encoding cannot collide with this one.
#[must_use]
pub fn payload(kind: InputKind, mode: Mode, content: &Content, metadata: Option<&str>) -> Digest {
    let mut hash = Sha256::new();
    hash.update([1_u8]);
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    field(kind.as_str().as_bytes());
    field(mode.as_str().as_bytes());
    for part in &content.0 {
        match part {
            Part::Text(text) => {
                field(b"text");
                field(text.as_bytes());
            }
            Part::Image { media_type, data, url } => {
                field(b"image");
                field(media_type.as_bytes());
                field(data.as_deref().unwrap_or_default().as_bytes());
                field(url.as_deref().unwrap_or_default().as_bytes());
            }
        }
    }
    field(b"metadata");
    field(metadata.unwrap_or_default().as_bytes());
    Digest(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_payloads_agree_and_any_difference_shows() {
        let of = |text: &str, mode| payload(InputKind::Message, mode, &Content::text(text), None);
        assert_eq!(of("a", Mode::Queue), of("a", Mode::Queue));
        assert_ne!(of("a", Mode::Queue), of("a ", Mode::Queue));
        assert_ne!(of("a", Mode::Queue), of("a", Mode::Steer));
        let split = Content(vec![Part::Text("a".into()), Part::Text("b".into())]);
        let joined = Content::text("ab");
        assert_ne!(
            payload(InputKind::Message, Mode::Queue, &split, None),
            payload(InputKind::Message, Mode::Queue, &joined, None)
        );
    }
}
