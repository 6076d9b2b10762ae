//! Policies on the wire and in stored columns.

use std::collections::BTreeMap;

use everturn_core as core;
use everturn_core::limits;
use serde::{Deserialize, Serialize};

/// A session's policy, complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Policy {
    /// `allow`, `ask` or `deny` by tool name; `*` stands for every tool that is not named.
    #[serde(default)]
    pub tools: BTreeMap<String, Permission>,
    /// How the queue is taken.
    #[serde(default)]
    pub queue: Queue,
    /// What happens after an interruption.
    #[serde(default)]
    pub auto_continue: AutoContinue,
    /// Seconds that an approval stays open.
    #[serde(default = "approval_timeout_s")]
    pub approval_timeout_s: u64,
    /// Seconds that a question of the model waits for its answer.
    #[serde(default = "clarification_timeout_s")]
    pub clarification_timeout_s: u64,
}

fn clarification_timeout_s() -> u64 {
    core::Policy::default().clarification_timeout_s
}

fn approval_timeout_s() -> u64 {
    core::Policy::default().approval_timeout_s
}

/// Whether a tool may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Without asking.
    Allow,
    /// After a person's approval.
    Ask,
    /// Not at all.
    Deny,
}

/// How many queued inputs one turn takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// One.
    #[default]
    One,
    /// All that people queued.
    Batch,
}

/// When an interrupted turn is continued by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// As soon as the interruption is recorded.
    OnStart,
    /// When a viewer who may submit is there.
    OnView,
}

/// Continuing without a person's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AutoContinue {
    /// The switch.
    pub enabled: bool,
    /// The moment.
    pub when: When,
    /// Continuations of one turn, at most.
    pub max_attempts: u32,
    /// Seconds from the run's last record within which it is fresh enough.
    pub window_s: u64,
}

impl Default for AutoContinue {
    fn default() -> Self {
        (&core::AutoContinue::default()).into()
    }
}

impl From<&core::AutoContinue> for AutoContinue {
    fn from(from: &core::AutoContinue) -> Self {
        Self {
            enabled: from.enabled,
            when: match from.when {
                core::AutoContinueWhen::OnStart => When::OnStart,
                core::AutoContinueWhen::OnView => When::OnView,
            },
            max_attempts: from.max_attempts,
            window_s: from.window_s,
        }
    }
}

impl From<AutoContinue> for core::AutoContinue {
    fn from(from: AutoContinue) -> Self {
        Self {
            enabled: from.enabled,
            when: match from.when {
                When::OnStart => core::AutoContinueWhen::OnStart,
                When::OnView => core::AutoContinueWhen::OnView,
            },
            max_attempts: from.max_attempts,
            window_s: from.window_s,
        }
    }
}

impl From<core::Permission> for Permission {
    fn from(from: core::Permission) -> Self {
        match from {
            core::Permission::Allow => Self::Allow,
            core::Permission::Ask => Self::Ask,
            core::Permission::Deny => Self::Deny,
        }
    }
}

impl From<Permission> for core::Permission {
    fn from(from: Permission) -> Self {
        match from {
            Permission::Allow => Self::Allow,
            Permission::Ask => Self::Ask,
            Permission::Deny => Self::Deny,
        }
    }
}

impl From<&core::Policy> for Policy {
    fn from(from: &core::Policy) -> Self {
        Self {
            tools: from.tools.iter().map(|(name, rule)| (name.clone(), (*rule).into())).collect(),
            queue: match from.queue {
                core::QueuePolicy::One => Queue::One,
                core::QueuePolicy::Batch => Queue::Batch,
            },
            auto_continue: (&from.auto_continue).into(),
            approval_timeout_s: from.approval_timeout_s,
            clarification_timeout_s: from.clarification_timeout_s,
        }
    }
}

impl From<Policy> for core::Policy {
    fn from(from: Policy) -> Self {
        Self {
            tools: from.tools.into_iter().map(|(name, rule)| (name, rule.into())).collect(),
            queue: match from.queue {
                Queue::One => core::QueuePolicy::One,
                Queue::Batch => core::QueuePolicy::Batch,
            },
            auto_continue: from.auto_continue.into(),
            approval_timeout_s: from.approval_timeout_s,
            clarification_timeout_s: from.clarification_timeout_s,
        }
    }
}

/// A change to a policy: keys that are absent stay. A tool set to `null` loses its rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PolicyPatch {
    /// Rules to set or remove.
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, Permission>>))]
    pub tools: Option<BTreeMap<String, Option<Permission>>>,
    /// How the queue is taken.
    pub queue: Option<Queue>,
    /// What happens after an interruption.
    #[serde(deserialize_with = "crate::object::one")]
    pub auto_continue: Option<AutoContinuePatch>,
    /// Seconds that an approval stays open, 1 to 86 400.
    pub approval_timeout_s: Option<u64>,
    /// Seconds that a question of the model waits for its answer, 1 to 86 400.
    pub clarification_timeout_s: Option<u64>,
}

/// A change to the automatic continuation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AutoContinuePatch {
    /// The switch.
    pub enabled: Option<bool>,
    /// The moment.
    pub when: Option<When>,
    /// Continuations of one turn, at most 100.
    pub max_attempts: Option<u32>,
    /// Seconds, at most 604 800.
    pub window_s: Option<u64>,
}

/// Whether a tool may have this name: 1 to 128 of `A-Z a-z 0-9 _ . -`. Providers allow fewer.
fn is_tool_name(name: &str) -> bool {
    let is_usual = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-');
    (1..=limits::TOOL_NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_usual)
}

impl PolicyPatch {
    /// What is out of range, in words, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        if self.approval_timeout_s.is_some_and(|s| !(1..=86_400).contains(&s)) {
            return Some("policy.approval_timeout_s must be 1 to 86400");
        }
        if self.clarification_timeout_s.is_some_and(|s| !(1..=86_400).contains(&s)) {
            return Some("policy.clarification_timeout_s must be 1 to 86400");
        }
        if let Some(auto) = &self.auto_continue {
            if auto.max_attempts.is_some_and(|n| n > 100) {
                return Some("policy.auto_continue.max_attempts must be at most 100");
            }
            if auto.window_s.is_some_and(|s| s > 604_800) {
                return Some("policy.auto_continue.window_s must be at most 604800");
            }
        }
        let tools = self.tools.as_ref()?;
        if tools.len() > limits::POLICY_TOOLS_MAX {
            return Some("policy.tools may name at most 256 tools");
        }
        if !tools.keys().all(|name| name == "*" || is_tool_name(name)) {
            return Some(
                "policy.tools takes names of 1 to 128 of A-Z a-z 0-9 _ . -, or * for all others",
            );
        }
        None
    }

    /// Applies the change.
    pub fn apply(&self, policy: &mut core::Policy) {
        for (name, rule) in self.tools.iter().flatten() {
            match rule {
                Some(rule) => policy.tools.insert(name.clone(), (*rule).into()),
                None => policy.tools.remove(name),
            };
        }
        match self.queue {
            Some(Queue::One) => policy.queue = core::QueuePolicy::One,
            Some(Queue::Batch) => policy.queue = core::QueuePolicy::Batch,
            None => {}
        }
        if let Some(auto) = &self.auto_continue {
            let now = &mut policy.auto_continue;
            now.enabled = auto.enabled.unwrap_or(now.enabled);
            match auto.when {
                Some(When::OnStart) => now.when = core::AutoContinueWhen::OnStart,
                Some(When::OnView) => now.when = core::AutoContinueWhen::OnView,
                None => {}
            }
            now.max_attempts = auto.max_attempts.unwrap_or(now.max_attempts);
            now.window_s = auto.window_s.unwrap_or(now.window_s);
        }
        policy.approval_timeout_s = self.approval_timeout_s.unwrap_or(policy.approval_timeout_s);
        policy.clarification_timeout_s =
            self.clarification_timeout_s.unwrap_or(policy.clarification_timeout_s);
    }
}
