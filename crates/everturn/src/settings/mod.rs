//! Settings: what they are, and where each came from. Flag > environment > file > default.
//!
//! The table below is the only list: the file's keys, the variables' names, `config show`, the checks
//! and docs/configuration.md (by a test) all follow it.

mod file;
pub(crate) mod kinds;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kinds::{Count, Form, Fsync, Kind, LogFormat, Moment, Names, Switch};

use crate::error::{CliError, Fault, Result};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nobody said anything.
    Default,
    /// A line of the file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A variable.
    Env(String),
    /// A flag.
    Flag(&'static str),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A value and its source.
#[derive(Debug, Clone)]
pub(crate) struct Setting<T> {
    /// The value.
    pub(crate) value: T,
    /// Where it came from.
    pub(crate) source: Source,
}

/// One line of the table of settings.
pub(crate) struct Row {
    /// Name in the file, groups separated by dots.
    pub(crate) key: &'static str,
    /// The flag that sets it, where there is one.
    pub(crate) flag: Option<&'static str>,
    /// The default as text; `None` for what has none, or one that depends on other things.
    pub(crate) default: Option<&'static str>,
    /// What it is for, and what holds when it is not set.
    pub(crate) about: &'static str,
    pub(crate) form: Form,
    pub(crate) expects: fn() -> String,
}

impl Row {
    /// The variable that sets it.
    pub(crate) fn env(&self) -> String {
        format!("EVERTURN_{}", self.key.to_uppercase().replace('.', "_"))
    }
}

macro_rules! settings {
    ($($field:ident: $ty:ty = $key:literal, $default:expr, $flag:expr, $about:literal;)*) => {
        /// Every setting.
        pub(crate) const TABLE: &[Row] = &[$(Row {
            key: $key,
            flag: $flag,
            default: $default,
            about: $about,
            form: <$ty as Kind>::FORM,
            expects: <$ty as Kind>::expects,
        },)*];

        /// All settings, resolved.
        #[derive(Debug, Clone)]
        pub(crate) struct Settings {
            $(#[doc = $about] pub(crate) $field: Setting<$ty>,)*
            /// The file that was read, if any.
            pub(crate) file: Option<PathBuf>,
        }

        impl Settings {
            fn fill(look: &dyn Fn(&Row) -> Option<(String, Source)>, file: Option<PathBuf>) -> Result<Self> {
                let mut rows = TABLE.iter();
                Ok(Self {
                    $($field: one::<$ty>(rows.next(), look)?,)*
                    file,
                })
            }

            /// Every setting as `(row, value as text, source)`, in the order of the table.
            pub(crate) fn rows(&self) -> Vec<(&'static Row, String, &Source)> {
                let mut rows = TABLE.iter();
                let mut all = Vec::new();
                $(if let Some(row) = rows.next() {
                    all.push((row, self.$field.value.show(), &self.$field.source));
                })*
                all
            }
        }
    };
}

settings! {
    home: PathBuf = "home", None, Some("--home"),
        "Folder that holds everything. Default: `$XDG_DATA_HOME/everturn`, else `~/.local/share/everturn`. Not in the file that lies in the home itself";
    listen: SocketAddr = "listen", Some("127.0.0.1:8787"), Some("--listen"),
        "Address that `serve` listens on. Port 0 picks a free one. Outside loopback a token must exist";
    store: Option<String> = "store", None, Some("--store"),
        "Folder of the store, or `sqlite:FOLDER`; `everturn.db` is in it. Default: the home";
    model: Option<String> = "model", None, Some("--model"),
        "`PROVIDER/NAME` of the model for sessions that name none; see docs/models.md for what holds when it is not set";
    workspace: Option<PathBuf> = "workspace", None, Some("--workspace"),
        "Folder that tools work in. Default: `workspace` in the home for `serve`, the current folder for `run` and `chat`";
    system: Option<String> = "system", None, None,
        "System text that every session begins with, in place of the built-in one";
    lease_s: Count<3, 3_600> = "lease_s", Some("30"), None,
        "Seconds that a process's right to a session lasts without renewal";
    renew_s: Count<1, 1_200> = "renew_s", Some("10"), None,
        "Seconds between renewals; less than half of `lease_s`";
    drain_timeout_s: Count<0, 3_600> = "drain_timeout_s", Some("30"), None,
        "Seconds that a leaving process waits for steps under way before it interrupts them";
    steps_max: Count<1, 10_000> = "steps_max", Some("100"), None,
        "Model requests of one turn";
    turns_max: Count<1, 100_000> = "turns_max", Some("1024"), None,
        "Turns that one process runs at the same time";
    coalesce_ms: Count<0, 1_000> = "coalesce_ms", Some("10"), None,
        "Milliseconds that pieces of text may wait to share a commit; the first of a burst never waits";
    poll_ms: Count<10, 10_000> = "poll_ms", Some("250"), None,
        "Milliseconds between looks at what other processes did";
    reconnect_s: Count<0, 86_400> = "reconnect_s", Some("60"), Some("--reconnect"),
        "Seconds that a command tries to reach its server again before it gives up with exit code 5";
    wait_s: Count<0, 604_800> = "wait_s", Some("1800"), Some("--wait"),
        "Seconds that `run` waits for a queued input to begin before it gives up with exit code 6";
    log: Option<String> = "log", None, Some("--log"),
        "What is logged to stderr: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,everturn_engine=debug`. Default: `info` for `serve`, `warn` for all others";
    log_format: LogFormat = "log_format", Some("text"), None,
        "`text` or `json`";
    journal_fsync: Fsync = "journal.fsync", Some("terminal-only"), None,
        "`terminal-only`: everything but pieces of text is synced to the disk before it is acknowledged; `eager`: those, too";
    retention_token_events_s: Count<0, 3_153_600_000> = "retention.token_events_s", Some("604800"), None,
        "Seconds after the end of a turn that its pieces of text stay single events; then one snapshot stands for each range of them. 0: for ever";
    limits_queue: Count<1, 100_000> = "limits.queue", Some("1000"), None,
        "Inputs that may wait in one session";
    limits_sessions: Count<1, 100_000_000> = "limits.sessions", Some("100000"), None,
        "Sessions of one principal";
    limits_rate: Count<1, 10_000_000> = "limits.rate", Some("10000"), None,
        "Requests per second of one principal, on average";
    limits_burst: Count<1, 10_000_000> = "limits.burst", Some("40000"), None,
        "Requests of one principal at once, after a pause";
    limits_streams: Count<1, 1_000_000> = "limits.streams", Some("20000"), None,
        "Open event streams of a server";
    limits_streams_per_principal: Count<1, 1_000_000> = "limits.streams_per_principal", Some("10000"), None,
        "Open event streams of one principal";
    limits_connections: Count<1, 1_000_000> = "limits.connections", Some("25000"), None,
        "Open connections of a server; further ones wait";
    limits_min_free_bytes: Count<0, 1_000_000_000_000> = "limits.min_free_bytes", Some("67108864"), None,
        "Bytes that stay free where the store is: with less, nothing new is accepted";
    hosts: Names = "hosts", Some(""), None,
        "Host names, beside loopback's and the bound address, under which the server is reached (behind a proxy, say)";
    auto_continue: Switch = "recovery.auto_continue", Some("on"), None,
        "`on` or `off`: whether interrupted turns go on by themselves, in new sessions that say nothing else";
    auto_continue_when: Moment = "recovery.when", Some("on_start"), None,
        "`on_start` or `on_view`: at once, or when somebody looks; in new sessions that say nothing else";
    auto_continue_attempts: Count<1, 10> = "recovery.attempts", Some("2"), None,
        "Continuations of one turn, at most, in new sessions that say nothing else";
    auto_continue_window_s: Count<1, 86_400> = "recovery.window_s", Some("900"), None,
        "Seconds from a turn's last record within which it goes on by itself, in new sessions that say nothing else";
    watchdog_model_s: Count<1, 86_400> = "watchdog.model_s", Some("600"), None,
        "Seconds without a sign of a model request after which it is ended; more than `provider.first_event_s` and `provider.between_events_s`, which come first";
    watchdog_tool_s: Count<1, 86_400> = "watchdog.tool_s", Some("600"), None,
        "Seconds without output after which a tool that has not ended is ended";
    watchdog_store_s: Count<1, 86_400> = "watchdog.store_s", Some("600"), None,
        "Seconds that a turn waits for a store that takes no record, before it lets go and is recorded as interrupted later";
    loop_breaker_starts: Count<1, 1_000> = "recovery.loop_breaker_starts", Some("3"), None,
        "Interrupted starts in a row from which on nothing is continued by itself";
    loop_breaker_window_s: Count<1, 86_400> = "recovery.loop_breaker_window_s", Some("300"), None,
        "Longest gap in seconds between two of them";
    provider_connect_s: Count<1, 600> = "provider.connect_s", Some("10"), None,
        "Seconds to connect to a provider";
    provider_first_event_s: Count<1, 86_400> = "provider.first_event_s", Some("120"), None,
        "Seconds from a model request to the first piece of its answer";
    provider_between_events_s: Count<1, 86_400> = "provider.between_events_s", Some("120"), None,
        "Seconds between two pieces of an answer";
    provider_retries: Count<0, 100> = "provider.retries", Some("4"), None,
        "Tries after the first one, before anything of an answer came";
    provider_context_tokens: Option<Count<1, 1_000_000_000>> = "provider.context_tokens", None, None,
        "Tokens that the model takes; longer conversations are refused here instead of by the provider. Default: not known";
    provider_continue_partial: Names = "provider.continue_partial", Some("auto"), None,
        "Models that go on writing a message of theirs that an interruption cut off, instead of being told of it: beginnings of `PROVIDER/NAME`; `auto` stands for those that are known to, `none` for none";
    tools_pass_env: Names = "tools.pass_env", Some(""), None,
        "Names of variables that shell commands may see beyond the built-in list; what looks like a secret stays hidden";
}

fn one<T: Kind>(
    row: Option<&'static Row>,
    look: &dyn Fn(&Row) -> Option<(String, Source)>,
) -> Result<Setting<T>> {
    // The macro writes the rows and their fields in one order.
    let Some(row) = row else { return Err(CliError::new(Fault::Config, "a setting has no row")) };
    let (text, source) = match look(row) {
        Some(found) => found,
        None => (row.default.unwrap_or_default().to_owned(), Source::Default),
    };
    if source == Source::Default
        && row.default.is_none()
        && let Some(value) = T::absent()
    {
        return Ok(Setting { value, source });
    }
    match T::read(&text) {
        Some(value) => Ok(Setting { value, source }),
        None => {
            let what = format!("{} must be {}, not {text:?}", row.key, (row.expects)());
            let message = match &source {
                Source::Default => what,
                _ => format!("{source}: {what}"),
            };
            let then = match row.default {
                Some(default) if !default.is_empty() => format!("; then it is {default}"),
                _ => String::new(),
            };
            let hint = match &source {
                Source::Env(name) => format!("change {name}, or unset it{then}"),
                Source::File { .. } => format!("change the line, or delete it{then}"),
                _ => format!("give another value, or none{then}"),
            };
            Err(CliError::new(Fault::Config, message).hint(hint))
        }
    }
}

/// What the command line itself said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    pub(crate) said: Vec<(&'static str, String)>,
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
}

impl Flags {
    /// Notes a flag's value, by the key of its setting.
    pub(crate) fn set(&mut self, key: &'static str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.said.push((key, value.into()));
        }
    }
}

/// Reads a variable.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The real environment.
pub(crate) fn process_env(name: &str) -> Option<String> {
    // What is no UTF-8 is not passed over: it is no valid value of any setting either.
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

impl Settings {
    /// Resolves all settings.
    pub(crate) fn load(flags: &Flags, env: Env<'_>) -> Result<Self> {
        let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let named = flags.config.clone().or_else(|| set("EVERTURN_CONFIG").map(PathBuf::from));
        let own_home = |said: Option<&file::Said>| -> Result<(PathBuf, Source)> {
            let flag = flags.said.iter().find(|(key, _)| *key == "home");
            if let Some((_, home)) = flag {
                return Ok((PathBuf::from(home), Source::Flag("--home")));
            }
            if let Some(home) = set("EVERTURN_HOME") {
                return Ok((PathBuf::from(home), Source::Env("EVERTURN_HOME".to_owned())));
            }
            if let (Some((home, line)), Some(path)) = (said.and_then(|s| s.get("home")), &named) {
                let source = Source::File { path: path.clone(), line: *line };
                return Ok((PathBuf::from(home), source));
            }
            default_home(&set).map(|home| (home, Source::Default))
        };
        let (said, path) = match &named {
            Some(path) => (file::read(path)?, Some(path.clone())),
            None => {
                let path = own_home(None)?.0.join("config.toml");
                if path.exists() {
                    let said = file::read(&path)?;
                    if let Some((_, line)) = said.get("home") {
                        let error = format!(
                            "{}:{line}: home cannot be set in the file that lies in the home",
                            path.display()
                        );
                        return Err(CliError::new(Fault::Config, error)
                            .hint("use --home, EVERTURN_HOME, or a file elsewhere with --config"));
                    }
                    (said, Some(path))
                } else {
                    (file::Said::new(), None)
                }
            }
        };
        let home = own_home(Some(&said))?;
        let look = |row: &Row| -> Option<(String, Source)> {
            if row.key == "home" {
                return Some((home.0.display().to_string(), home.1.clone()));
            }
            if let Some((_, value)) = flags.said.iter().rev().find(|(key, _)| *key == row.key) {
                return Some((value.clone(), Source::Flag(row.flag.unwrap_or("--set"))));
            }
            if let Some(value) = set(&row.env()) {
                return Some((value, Source::Env(row.env())));
            }
            let (value, line) = said.get(row.key)?;
            let path = path.clone()?;
            Some((value.clone(), Source::File { path, line: *line }))
        };
        let settings = Self::fill(&look, path.clone())?;
        settings.check()?;
        Ok(settings)
    }

    /// What no single value shows.
    fn check(&self) -> Result<()> {
        if self.renew_s.value.0 * 2 >= self.lease_s.value.0 {
            let message = format!(
                "renew_s ({}, from {}) must be less than half of lease_s ({}, from {})",
                self.renew_s.value.0,
                self.renew_s.source,
                self.lease_s.value.0,
                self.lease_s.source
            );
            return Err(CliError::new(Fault::Config, message)
                .hint("a lease that is renewed too rarely is lost while its holder still works"));
        }
        let patience =
            self.provider_first_event_s.value.0.max(self.provider_between_events_s.value.0);
        if self.watchdog_model_s.value.0 <= patience {
            let message = format!(
                "watchdog.model_s ({}, from {}) must be more than provider.first_event_s and provider.between_events_s ({patience})",
                self.watchdog_model_s.value.0, self.watchdog_model_s.source,
            );
            return Err(CliError::new(Fault::Config, message).hint(
                "the watchdog is there for what the provider's own limits forget; set it above them",
            ));
        }
        Ok(())
    }
}

fn default_home(set: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    // The rule of the base-directory specification: a relative value is to be ignored.
    if let Some(data) = set("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        return Ok(data.join("everturn"));
    }
    match set("HOME").map(PathBuf::from) {
        Some(home) => Ok(home.join(".local/share/everturn")),
        None => Err(CliError::new(
            Fault::Home,
            "there is no home: neither HOME nor EVERTURN_HOME is set",
        )
        .hint("say where with --home DIR")),
    }
}

/// Variables that begin like ours and are none of ours: misspelt, most likely.
pub(crate) fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    // Those that the tools give to commands, and those of the project's own tests.
    const OTHERS: &[&str] = &[
        "EVERTURN_CONFIG",
        "EVERTURN_IDEMPOTENCY_KEY",
        "EVERTURN_COMMAND_ID",
        "EVERTURN_CRASH",
        "EVERTURN_LONG",
        "EVERTURN_BIN",
        "EVERTURN_CHROMIUM",
        "EVERTURN_CURL",
        "EVERTURN_NGINX",
        "EVERTURN_PYTHON",
    ];
    names
        .filter(|name| name.starts_with("EVERTURN_"))
        .filter(|name| !OTHERS.contains(&name.as_str()))
        .filter(|name| !TABLE.iter().any(|row| row.env() == *name))
        .collect()
}

/// The variable that a misspelt one was meant to be, perhaps.
pub(crate) fn nearest_variable(name: &str) -> Option<String> {
    let key = name.strip_prefix("EVERTURN_")?.to_lowercase();
    let near = file::nearest(&key)?;
    TABLE.iter().find(|row| row.key == near).map(Row::env)
}

/// The path made absolute, so that a later change of folder cannot change its meaning.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| crate::error::io("find", path, error))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
