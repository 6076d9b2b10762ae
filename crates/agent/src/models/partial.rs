//! Which models go on writing a message of theirs that broke off. docs/models.md has the table for
//! people.

use genai::adapter::AdapterKind;

use super::kind_of;

/// Which models are asked to go on writing a message of theirs that broke off, where it broke off.
/// A script says it itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinuePartial(Vec<String>);

/// Stands for every model that is known to do so.
const AUTO: &str = "auto";

impl Default for ContinuePartial {
    fn default() -> Self {
        Self(vec![AUTO.to_owned()])
    }
}

impl ContinuePartial {
    /// Beginnings of `provider/name`; `auto` stands for the models that are known to do so, and no
    /// word at all for none.
    #[must_use]
    pub const fn of(words: Vec<String>) -> Self {
        Self(words)
    }

    pub(super) fn holds(&self, kind: AdapterKind, name: &str) -> bool {
        self.0.iter().any(|word| match word.as_str() {
            AUTO => is_known_to_continue(kind, name),
            word => {
                let (provider, begins) = word.split_once('/').unwrap_or((word, ""));
                kind_of(provider) == Some(kind) && name.starts_with(begins)
            }
        })
    }
}

/// Whether a model goes on writing a last message of its own. Ollama's do; so did Anthropic's up to
/// the generation 4.5, and later ones refuse it. OpenAI's own begin a new message instead, and what
/// another server behind its protocol does depends on the server.
fn is_known_to_continue(kind: AdapterKind, name: &str) -> bool {
    const CLAUDE: [&str; 9] = [
        "claude-3-",
        "claude-opus-4-0",
        "claude-opus-4-1",
        "claude-opus-4-2025",
        "claude-opus-4-5",
        "claude-sonnet-4-0",
        "claude-sonnet-4-2025",
        "claude-sonnet-4-5",
        "claude-haiku-4-5",
    ];
    match kind {
        AdapterKind::Ollama => true,
        AdapterKind::Anthropic => CLAUDE.iter().any(|known| name.starts_with(known)),
        _ => false,
    }
}
