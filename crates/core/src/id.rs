//! Identifiers, each its own type, validated when it is made.
//!
//! An id that exists is well formed: no function behind this module checks one again, and no path,
//! header or query is ever built from text that did not pass here.

use std::fmt;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty or longer than the limit.
    #[error("must have 1 to {max} characters, has {got}")]
    Length {
        /// Longest allowed length in characters.
        max: usize,
        /// Length found.
        got: usize,
    },
    /// A character outside `A-Z a-z 0-9 _ . -`, or outside visible ASCII for request ids.
    #[error("character {0:?} is not allowed")]
    Character(char),
    /// Ids never start with a dot, so that none is `.`, `..` or a hidden file.
    #[error("must not start with a dot")]
    LeadingDot,
}

/// Checks the rule that all ids share: 1–128 of `A-Z a-z 0-9 _ . -`, not starting with a dot.
fn check(text: &str) -> Result<(), IdError> {
    let max = crate::limits::ID_CHARS_MAX;
    if text.is_empty() || text.len() > max {
        return Err(IdError::Length { max, got: text.chars().count() });
    }
    if let Some(c) =
        text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')))
    {
        return Err(IdError::Character(c));
    }
    if text.starts_with('.') {
        return Err(IdError::LeadingDot);
    }
    Ok(())
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Accepts 1–128 of `A-Z a-z 0-9 _ . -`, not starting with a dot.
            ///
            /// # Errors
            /// [`IdError`] says which rule was broken.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check(text)?;
                Ok(Self(text.into()))
            }

            /// A fresh id from a UUID that the caller made (version 7, so that ids sort by time).
            #[must_use]
            pub fn from_uuid(uuid: uuid::Uuid) -> Self {
                let mut buffer = uuid::Uuid::encode_buffer();
                let text = uuid.simple().encode_lower(&mut buffer);
                Self(format!(concat!($prefix, "{}"), text).into())
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }
    )*};
}

ids! {
    /// One conversation. Chosen by the client or made by the server; never changes.
    SessionId, "ses_";
    /// One accepted input.
    InputId, "inp_";
    /// The journal of one turn.
    RunId, "run_";
    /// One tool call, unique in the store (providers repeat theirs between steps).
    CallId, "call_";
    /// One approval or clarification.
    PromptId, "prm_";
    /// One process that has the store open.
    NodeId, "node_";
    /// One access token (its name, not its secret).
    TokenId, "tok_";
    /// Whose session, input or token it is.
    Principal, "prn_";
}

impl Principal {
    /// Who every request comes from while no token exists.
    #[must_use]
    pub fn local() -> Self {
        Self("local".into())
    }
}

/// The sender's own name for an input: 1–255 visible ASCII characters (the rule of the
/// `Idempotency-Key` header, which is the same identity).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(std::sync::Arc<str>);

impl RequestId {
    /// Accepts 1–255 characters from `!` to `~`.
    ///
    /// # Errors
    /// [`IdError`] says which rule was broken.
    pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
        let text = text.as_ref();
        let max = crate::limits::REQUEST_ID_CHARS_MAX;
        if text.is_empty() || text.len() > max {
            return Err(IdError::Length { max, got: text.chars().count() });
        }
        match text.chars().find(|c| !c.is_ascii_graphic()) {
            Some(c) => Err(IdError::Character(c)),
            None => Ok(Self(text.into())),
        }
    }

    /// A fresh one, for a sender who gave none.
    #[must_use]
    pub fn from_uuid(uuid: uuid::Uuid) -> Self {
        Self(format!("req_{}", uuid.simple()).into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_refuse_paths_and_hidden_names() {
        for bad in ["", ".", "..", "../x", "a/b", ".hidden", "a b", "é", "a\0b", "a:1"] {
            assert!(SessionId::new(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(SessionId::new("x".repeat(129)).is_err());
        for good in ["a", "A-b_c.9", &"x".repeat(128)] {
            assert!(SessionId::new(good).is_ok(), "{good:?} was refused");
        }
    }

    #[test]
    fn request_ids_are_visible_ascii() {
        assert!(RequestId::new("a:/?{}~!").is_ok());
        for bad in ["", " ", "a b", "tab\t", "ü", &"k".repeat(256)] {
            assert!(RequestId::new(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
