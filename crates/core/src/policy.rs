//! A session's policy: what tools may do, how the queue is taken, what happens after an interruption.

use std::collections::BTreeMap;

use crate::limits;
use crate::message::Effect;

words! {
    /// Whether a tool may run.
    Permission {
        /// Without asking.
        Allow = "allow",
        /// After a person's approval.
        Ask = "ask",
        /// Not at all.
        Deny = "deny",
    }
}

words! {
    /// How many queued inputs one turn takes.
    QueuePolicy {
        /// One.
        One = "one",
        /// All that people queued.
        Batch = "batch",
    }
}

words! {
    /// When an interrupted turn is continued by itself.
    AutoContinueWhen {
        /// As soon as its interruption is recorded.
        OnStart = "on_start",
        /// When a viewer who may submit is there.
        OnView = "on_view",
    }
}

/// Whether and how often an interrupted turn is continued without a person's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoContinue {
    /// The switch.
    pub enabled: bool,
    /// The moment.
    pub when: AutoContinueWhen,
    /// Continuations of one turn, at most.
    pub max_attempts: u32,
    /// Seconds from the run's last committed record within which it is fresh enough.
    pub window_s: u64,
}

impl Default for AutoContinue {
    fn default() -> Self {
        Self { enabled: true, when: AutoContinueWhen::OnStart, max_attempts: 2, window_s: 900 }
    }
}

/// A session's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Permission by tool name; `*` stands for every tool that is not named.
    pub tools: BTreeMap<String, Permission>,
    /// How the queue is taken.
    pub queue: QueuePolicy,
    /// What happens after an interruption.
    pub auto_continue: AutoContinue,
    /// Seconds that an approval stays open.
    pub approval_timeout_s: u64,
    /// Seconds that a question of the model waits for its answer.
    pub clarification_timeout_s: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            tools: BTreeMap::new(),
            queue: QueuePolicy::One,
            auto_continue: AutoContinue::default(),
            approval_timeout_s: 300,
            clarification_timeout_s: limits::CLARIFICATION_S,
        }
    }
}

impl Policy {
    /// Whether a call of tool `name` may run. The first of these that there is decides: the
    /// session's own rule for it; a denial of `*`; a lasting grant of the principal, for this tool
    /// in all sessions; the session's rule for `*`; at last reading is allowed and everything else
    /// asks.
    #[must_use]
    pub fn permission(&self, name: &str, effect: Effect, granted: bool) -> Permission {
        if let Some(rule) = self.tools.get(name) {
            return *rule;
        }
        match self.tools.get("*") {
            Some(Permission::Deny) => Permission::Deny,
            _ if granted => Permission::Allow,
            Some(rule) => *rule,
            None if effect == Effect::Read => Permission::Allow,
            None => Permission::Ask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_allowed_and_everything_else_asks() {
        let policy = Policy::default();
        assert_eq!(policy.permission("read_file", Effect::Read, false), Permission::Allow);
        assert_eq!(policy.permission("shell", Effect::Write, false), Permission::Ask);
        assert_eq!(policy.permission("edit_file", Effect::Idempotent, false), Permission::Ask);
        assert_eq!(policy.permission("shell", Effect::Write, true), Permission::Allow);
    }

    #[test]
    fn a_name_beats_the_star_and_a_denial_beats_a_grant() {
        let mut policy = Policy::default();
        policy.tools.insert("*".into(), Permission::Deny);
        policy.tools.insert("shell".into(), Permission::Allow);
        assert_eq!(policy.permission("shell", Effect::Write, false), Permission::Allow);
        assert_eq!(policy.permission("read_file", Effect::Read, true), Permission::Deny);
    }

    #[test]
    fn a_session_that_asks_for_a_tool_asks_whatever_was_granted_elsewhere() {
        let mut policy = Policy::default();
        policy.tools.insert("*".into(), Permission::Ask);
        policy.tools.insert("shell".into(), Permission::Ask);
        assert_eq!(policy.permission("shell", Effect::Write, true), Permission::Ask);
        // The grant names the tool, and the star does not.
        assert_eq!(policy.permission("edit_file", Effect::Write, true), Permission::Allow);
        assert_eq!(policy.permission("read_file", Effect::Read, false), Permission::Ask);
    }
}
