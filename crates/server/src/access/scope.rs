//! What a token may do.

use std::fmt;

/// One permission. Every route needs exactly one; docs/api.md says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Reading sessions, runs, feeds, and how the server is.
    Read,
    /// Creating sessions and sending inputs.
    Submit,
    /// Stopping, changing, closing, deleting, withdrawing, deciding.
    Control,
    /// Answering prompts, and setting rules that make an answer unnecessary.
    Approve,
    /// Tokens and draining.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: &'static [Self] =
        &[Self::Read, Self::Submit, Self::Control, Self::Approve, Self::Admin];

    /// The word, as in `--scope`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Control => "control",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }

    /// The scope of a word, if it is one.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == word)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scopes(u8);

impl Scopes {
    pub(crate) const ALL: Self = Self(0b1_1111);

    pub(crate) fn of(words: &[String]) -> Self {
        // A word of a newer version grants nothing here.
        Self(words.iter().filter_map(|word| Scope::parse(word)).fold(0, |set, s| set | bit(s)))
    }

    pub(crate) const fn has(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    pub(crate) fn words(self) -> Vec<String> {
        Scope::ALL.iter().filter(|s| self.has(**s)).map(ToString::to_string).collect()
    }
}

const fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_sets_agree() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(*scope));
            assert!(Scopes::ALL.has(*scope));
            let only = Scopes::of(&[scope.to_string(), "fly".to_owned()]);
            assert_eq!(only.words(), [scope.to_string()]);
            assert_eq!(Scope::ALL.iter().filter(|other| only.has(**other)).count(), 1);
        }
        assert_eq!(Scope::parse("Read"), None);
    }
}
