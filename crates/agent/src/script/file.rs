//! The file of a script, read and checked. docs/script.md describes the format.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use everturn_core::Usage;
use regex::Regex;
use serde::Deserialize;
use toml::Spanned;

use super::template::Template;
use super::{Piece, ScriptError};
use crate::provider::Cut;

/// Bytes of a script file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Pieces that one `text`, `pieces` or `reasoning` may make, repetitions included.
pub(super) const PIECES_MAX: usize = 100_000;
/// Milliseconds that one wait may take: a day.
const WAIT_MS_MAX: u64 = 86_400_000;

/// A script, ready to be played.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) context_tokens: Option<u64>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) partial: Partial,
    pub(super) rules: Vec<Rule>,
}

/// What a scripted model does with a conversation that ends in its own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum Partial {
    /// It goes on writing it.
    #[default]
    #[serde(rename = "yes")]
    Continued,
    /// It claims that it cannot, and is told of the interruption.
    #[serde(rename = "no")]
    Told,
    /// It claims that it can, and refuses.
    #[serde(rename = "refused")]
    Refused,
}

/// One rule: when it applies, and what is answered.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) contains: Vec<String>,
    pub(super) matches: Option<Regex>,
    pub(super) round: Option<u32>,
    pub(super) continuation: Option<bool>,
    pub(super) partial: Option<bool>,
    pub(super) turn: Option<u64>,
    pub(super) tool_result: Option<String>,
    pub(super) offers: Option<String>,
    pub(super) acts: Vec<Act>,
    pub(super) usage: Option<Usage>,
    pub(super) stop: Option<Cut>,
    pub(super) resume: bool,
}

/// One thing that the scripted model does.
#[derive(Debug)]
pub(super) enum Act {
    Say { reasoning: bool, pieces: Vec<Template>, chop: bool, delay: Duration, repeat: usize },
    Call { name: String, arguments: Arguments, id: Option<String> },
    Wait(Duration),
    Stall(Fault),
    Cut(Fault),
    Fail { status: u16, message: Option<String>, retry_after: Option<Duration>, fault: Fault },
}

/// What a scripted call hands over.
#[derive(Debug)]
pub(super) enum Arguments {
    /// Well-formed; its strings are templates, which parse.
    Json(serde_json::Value),
    /// As it stands, for malformed ones.
    Raw(Template),
}

/// Something that goes wrong, always or the first few times.
#[derive(Debug)]
pub(super) struct Fault {
    times: Option<u32>,
    happened: AtomicU32,
}

impl Fault {
    /// Whether it goes wrong now; counts.
    pub(super) fn strikes(&self) -> bool {
        let Some(times) = self.times else { return true };
        self.happened
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < times).then(|| n + 1))
            .is_ok()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    context_tokens: Option<u64>,
    words_per_second: Option<Spanned<f64>>,
    delay_ms: Option<Spanned<u64>>,
    idle_timeout_ms: Option<Spanned<u64>>,
    #[serde(default)]
    continue_partial: Partial,
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawRound {
    Number(u32),
    Word(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    contains: Option<OneOrMany>,
    matches: Option<Spanned<String>>,
    round: Option<Spanned<RawRound>>,
    continuation: Option<bool>,
    partial: Option<bool>,
    turn: Option<u64>,
    tool_result: Option<String>,
    offers: Option<String>,
    reply: Vec<Spanned<RawAct>>,
    usage: Option<RawUsage>,
    stop: Option<RawStop>,
    resume: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawStop {
    Length,
    Filter,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUsage {
    input_tokens: u64,
    output_tokens: u64,
    cached_input_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAct {
    text: Option<String>,
    pieces: Option<Vec<String>>,
    reasoning: Option<String>,
    call: Option<String>,
    wait_ms: Option<u64>,
    stall: Option<bool>,
    cut: Option<bool>,
    fail: Option<u16>,

    words_per_second: Option<f64>,
    delay_ms: Option<u64>,
    repeat: Option<usize>,
    arguments: Option<toml::Table>,
    raw_arguments: Option<String>,
    id: Option<String>,
    times: Option<u32>,
    message: Option<String>,
    retry_after_s: Option<f64>,
}

/// How fast text comes where an act does not say so itself.
#[derive(Clone, Copy)]
struct Pace {
    words_per_second: Option<f64>,
    delay_ms: u64,
}

/// Where in a text something is wrong.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn wrong(&self, at: usize, message: impl Into<String>) -> ScriptError {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        ScriptError::Invalid { path: self.name.to_owned(), line, message: message.into() }
    }
}

impl Script {
    /// Reads a script file.
    pub(super) fn read(path: &Path) -> Result<Self, ScriptError> {
        let name = path.display().to_string();
        let unreadable = |message: String| ScriptError::Unreadable { path: name.clone(), message };
        // Opened first and measured then: the size must be that of what is read.
        // Without waiting: a pipe in its place would hold up everything else.
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), flags);
        let file = options.open(path).map_err(|error| unreadable(error.to_string()))?;
        let about = file.metadata().map_err(|error| unreadable(error.to_string()))?;
        if !about.is_file() {
            return Err(unreadable("it is not a file".to_owned()));
        }
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_BYTES_MAX + 1), &mut bytes)
            .map_err(|error| unreadable(error.to_string()))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(unreadable(format!("it is larger than {FILE_BYTES_MAX} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let good =
                String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
            Source { name: &name, text: &good }.wrong(good.len(), "not UTF-8 from here on")
        })?;
        Self::parse(&name, &text)
    }

    /// Reads a script. `name` is for errors.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let source = Source { name, text };
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            source.wrong(error.span().map_or(0, |span| span.start), error.message())
        })?;
        let pace = Pace {
            words_per_second: raw
                .words_per_second
                .map(|value| {
                    speed(*value.get_ref()).map_err(|m| source.wrong(value.span().start, m))
                })
                .transpose()?,
            delay_ms: raw
                .delay_ms
                .map(|value| {
                    span_ms(*value.get_ref()).map_err(|m| source.wrong(value.span().start, m))
                })
                .transpose()?
                .unwrap_or(0),
        };
        let idle_timeout = raw
            .idle_timeout_ms
            .map(|value| {
                span_ms(*value.get_ref())
                    .map(Duration::from_millis)
                    .map_err(|message| source.wrong(value.span().start, message))
            })
            .transpose()?;
        if raw.rule.is_empty() {
            return Err(source.wrong(text.len(), "the script has no `[[rule]]`"));
        }
        let rules = raw
            .rule
            .into_iter()
            .map(|rule| read_rule(&source, pace, rule))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            context_tokens: raw.context_tokens,
            idle_timeout,
            partial: raw.continue_partial,
            rules,
        })
    }
}

fn read_rule(source: &Source<'_>, pace: Pace, rule: Spanned<RawRule>) -> Result<Rule, ScriptError> {
    let at = rule.span().start;
    let rule = rule.into_inner();
    let matches = rule
        .matches
        .map(|pattern| {
            Regex::new(pattern.get_ref())
                .map_err(|error| source.wrong(pattern.span().start, error.to_string()))
        })
        .transpose()?;
    // Group 0, the whole match, is no group that one can name.
    let groups = matches.as_ref().map_or(0, |pattern| pattern.captures_len() - 1);
    let mut round_given = rule.round.is_some();
    let round = match rule.round {
        None => None,
        Some(value) => match value.get_ref() {
            RawRound::Number(number) => Some(*number),
            RawRound::Word(word) if word == "any" => None,
            RawRound::Word(_) => {
                return Err(source.wrong(value.span().start, "`round` is a number or \"any\""));
            }
        },
    };
    // Whoever waits for a certain result knows which round it is.
    round_given |= rule.tool_result.is_some();
    let mut acts = Vec::with_capacity(rule.reply.len());
    for act in rule.reply {
        let at = act.span().start;
        let act = read_act(act.into_inner(), pace, groups).map_err(|m| source.wrong(at, m))?;
        if matches!(act, Act::Call { .. }) && !round_given {
            return Err(source.wrong(
                at,
                "a rule that calls tools needs `round` (0 is the first request of a turn), \
                 or it would call them again after each result",
            ));
        }
        acts.push(act);
    }
    if acts.is_empty() {
        return Err(source.wrong(at, "the rule's `reply` is empty"));
    }
    Ok(Rule {
        contains: match rule.contains {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text.to_lowercase()],
            Some(OneOrMany::Many(texts)) => texts.iter().map(|t| t.to_lowercase()).collect(),
        },
        matches,
        round,
        continuation: rule.continuation,
        partial: rule.partial,
        turn: rule.turn,
        tool_result: rule.tool_result,
        offers: rule.offers,
        acts,
        usage: rule.usage.map(|usage| Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_input_tokens: usage.cached_input_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            cost: None,
        }),
        stop: rule.stop.map(|stop| match stop {
            RawStop::Length => Cut::Length,
            RawStop::Filter => Cut::Filter,
        }),
        resume: rule.resume.unwrap_or(true),
    })
}

/// Checks that an act has exactly one verb and only what belongs to it, and reads it.
fn read_act(raw: RawAct, pace: Pace, groups: usize) -> Result<Act, String> {
    let verbs = [
        ("text", raw.text.is_some()),
        ("pieces", raw.pieces.is_some()),
        ("reasoning", raw.reasoning.is_some()),
        ("call", raw.call.is_some()),
        ("wait_ms", raw.wait_ms.is_some()),
        ("stall", raw.stall.is_some()),
        ("cut", raw.cut.is_some()),
        ("fail", raw.fail.is_some()),
    ];
    let mut given = verbs.iter().filter(|(_, there)| *there).map(|(name, _)| *name);
    let Some(verb) = given.next() else {
        return Err(
            "a reply's part needs one of text, pieces, reasoning, call, wait_ms, stall, cut, fail"
                .to_owned(),
        );
    };
    if let Some(other) = given.next() {
        return Err(format!("`{verb}` and `{other}` are two parts of a reply: write two tables"));
    }
    let saying = matches!(verb, "text" | "pieces" | "reasoning");
    let failing = matches!(verb, "stall" | "cut" | "fail");
    for (name, there, belongs) in [
        ("words_per_second", raw.words_per_second.is_some(), matches!(verb, "text" | "reasoning")),
        ("delay_ms", raw.delay_ms.is_some(), saying),
        ("repeat", raw.repeat.is_some(), saying),
        ("arguments", raw.arguments.is_some(), verb == "call"),
        ("raw_arguments", raw.raw_arguments.is_some(), verb == "call"),
        ("id", raw.id.is_some(), verb == "call"),
        ("times", raw.times.is_some(), failing),
        ("message", raw.message.is_some(), verb == "fail"),
        ("retry_after_s", raw.retry_after_s.is_some(), verb == "fail"),
    ] {
        if there && !belongs {
            return Err(format!("`{name}` does not belong to `{verb}`"));
        }
    }
    let fault = Fault { times: raw.times, happened: AtomicU32::new(0) };
    match verb {
        "call" => read_call(raw, groups),
        "wait_ms" => Ok(Act::Wait(Duration::from_millis(span_ms(raw.wait_ms.unwrap_or(0))?))),
        "stall" | "cut" if raw.stall.or(raw.cut) == Some(false) => {
            Err(format!("`{verb}` is `true` or absent"))
        }
        "stall" => Ok(Act::Stall(fault)),
        "cut" => Ok(Act::Cut(fault)),
        "fail" => {
            let status = raw.fail.unwrap_or(0);
            if !(400..=599).contains(&status) {
                return Err("`fail` is an HTTP status from 400 to 599".to_owned());
            }
            let retry_after = raw
                .retry_after_s
                .map(|seconds| {
                    Duration::try_from_secs_f64(seconds)
                        .map_err(|_| "`retry_after_s` is a number of seconds".to_owned())
                })
                .transpose()?;
            Ok(Act::Fail { status, message: raw.message, retry_after, fault })
        }
        _ => read_say(raw, verb, pace, groups),
    }
}

fn read_call(raw: RawAct, groups: usize) -> Result<Act, String> {
    let name = raw.call.unwrap_or_default();
    let arguments = match (raw.arguments, raw.raw_arguments) {
        (Some(_), Some(_)) => {
            return Err("`arguments` and `raw_arguments` exclude each other".to_owned());
        }
        (None, Some(text)) => Arguments::Raw(Template::parse(&text, groups)?),
        (table, None) => {
            let json = json_of(toml::Value::Table(table.unwrap_or_default()));
            check_templates(&json, groups)?;
            Arguments::Json(json)
        }
    };
    Ok(Act::Call { name, arguments, id: raw.id })
}

/// Variables stand in strings, keys excluded; they are filled in before the whole becomes JSON text,
/// so that nothing that is filled in can break it.
fn check_templates(json: &serde_json::Value, groups: usize) -> Result<(), String> {
    match json {
        serde_json::Value::String(text) => Template::parse(text, groups).map(drop),
        serde_json::Value::Array(items) => {
            items.iter().try_for_each(|item| check_templates(item, groups))
        }
        serde_json::Value::Object(map) => map.iter().try_for_each(|(key, item)| {
            if key.contains("{{") {
                return Err("a key of `arguments` cannot hold a variable".to_owned());
            }
            check_templates(item, groups)
        }),
        _ => Ok(()),
    }
}

fn json_of(value: toml::Value) -> serde_json::Value {
    use serde_json::Value as J;
    match value {
        toml::Value::String(text) => J::String(text),
        toml::Value::Integer(number) => J::from(number),
        toml::Value::Float(number) => J::from(number),
        toml::Value::Boolean(truth) => J::Bool(truth),
        // JSON has no times; text is what a tool would be given.
        toml::Value::Datetime(time) => J::String(time.to_string()),
        toml::Value::Array(items) => J::Array(items.into_iter().map(json_of).collect()),
        toml::Value::Table(table) => {
            J::Object(table.into_iter().map(|(key, value)| (key, json_of(value))).collect())
        }
    }
}

fn read_say(raw: RawAct, verb: &str, pace: Pace, groups: usize) -> Result<Act, String> {
    let texts = match (raw.text.or(raw.reasoning), raw.pieces) {
        (Some(text), _) => vec![text],
        (None, pieces) => pieces.unwrap_or_default(),
    };
    if texts.iter().any(String::is_empty) || texts.is_empty() {
        return Err(format!("`{verb}` is empty"));
    }
    let repeat = raw.repeat.unwrap_or(1);
    if repeat.saturating_mul(texts.len()) > PIECES_MAX || repeat == 0 {
        return Err(format!("`repeat` makes none or more than {PIECES_MAX} pieces"));
    }
    if raw.words_per_second.is_some() && raw.delay_ms.is_some() {
        return Err("`words_per_second` and `delay_ms` exclude each other".to_owned());
    }
    let words_per_second = match raw.words_per_second.map(speed).transpose()? {
        None if verb == "pieces" || raw.delay_ms.is_some() => None,
        None => pace.words_per_second,
        given => given,
    };
    let delay = match words_per_second {
        Some(speed) => Duration::from_secs_f64(1.0 / speed),
        None => Duration::from_millis(span_ms(raw.delay_ms.unwrap_or(pace.delay_ms))?),
    };
    let pieces =
        texts.iter().map(|text| Template::parse(text, groups)).collect::<Result<Vec<_>, _>>()?;
    let chop = words_per_second.is_some();
    Ok(Act::Say { reasoning: verb == "reasoning", pieces, chop, delay, repeat })
}

fn speed(words_per_second: f64) -> Result<f64, String> {
    if (0.01..=100_000.0).contains(&words_per_second) {
        Ok(words_per_second)
    } else {
        Err("`words_per_second` is a number from 0.01 to 100000".to_owned())
    }
}

fn span_ms(ms: u64) -> Result<u64, String> {
    if ms <= WAIT_MS_MAX { Ok(ms) } else { Err(format!("more than {WAIT_MS_MAX} ms: a day")) }
}

/// Cuts a text into words, each with the white space after it.
pub(super) fn chop(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = 0;
    let mut after_space = false;
    for (at, character) in text.char_indices() {
        let space = character.is_whitespace();
        if after_space && !space {
            words.push(&text[start..at]);
            start = at;
        }
        after_space = space;
    }
    words.push(&text[start..]);
    words
}

/// The pieces of a rendered text.
pub(super) fn pieces(text: String, by_word: bool, reasoning: bool, delay: Duration) -> Vec<Piece> {
    let make = |text: &str| Piece { text: text.to_owned(), reasoning, delay };
    if by_word { chop(&text).into_iter().map(make).collect() } else { vec![make(&text)] }
}
