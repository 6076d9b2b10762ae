//! `everturn turn show`: the flight record of a turn. What happened, when, why it ended.

use std::fmt::Write as _;
use std::time::Duration;

use everturn_api::Code;
use everturn_api::input::Input;
use everturn_api::run::{Run, RunEvents};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::client::local::session_id;
use crate::client::{Client, Event, PAGE};
use crate::connect::reader;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::render::{arguments, duration};
use crate::settings::Settings;
use crate::term::{Paint, Term, one_line};
use crate::{print, table};

/// One run with its whole journal.
#[derive(Serialize)]
struct Flight {
    #[serde(flatten)]
    run: Run,
    events: Vec<Box<RawValue>>,
    malformed: Vec<everturn_api::run::Malformed>,
}

/// Everything that is known of a turn.
#[derive(Serialize)]
struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Input>,
    /// In the order in which they ran; more than one where a turn was interrupted and continued.
    runs: Vec<Flight>,
}

pub(crate) async fn show(
    settings: &Settings,
    id: &str,
    every_event: bool,
    json: bool,
    term: Term,
) -> Result<Exit> {
    let target = Target::parse(id)?;
    let client = reader(settings).await?;
    let (input, runs) = find(&*client, &target).await?;
    let mut record = Record { input, runs: Vec::new() };
    for run in runs {
        record.runs.push(flight(&*client, run).await?);
    }
    if json {
        print::json(&record)?;
    } else {
        print::text(&describe(&record, every_event, term.out_paint())?)?;
    }
    Ok(Exit::Completed)
}

/// What an id names.
pub(super) enum Target {
    Run(String),
    Input(String),
    Turn(String, u64),
}

impl Target {
    pub(super) fn parse(id: &str) -> Result<Self> {
        if let Some((session, generation)) = id.rsplit_once(':') {
            let session = session_id(session)?.to_string();
            let generation = generation.parse().map_err(|_| {
                CliError::usage(format!("{generation:?} is no number of a turn"))
                    .hint("SESSION:GENERATION, for example review:7")
            })?;
            return Ok(Self::Turn(session, generation));
        }
        if id.starts_with("run_") {
            return Ok(Self::Run(id.to_owned()));
        }
        if id.starts_with("inp_") {
            return Ok(Self::Input(id.to_owned()));
        }
        Err(CliError::usage(format!("{id:?} names no turn"))
            .hint("give a run (run_…), an input (inp_…) or SESSION:GENERATION"))
    }
}

pub(super) async fn find(
    client: &dyn Client,
    target: &Target,
) -> Result<(Option<Input>, Vec<Run>)> {
    match target {
        Target::Run(id) => {
            let run = client.run(id).await.map_err(|error| error.about(id))?;
            let input = client.input(&run.input_id, Duration::ZERO).await?;
            Ok((Some(input), vec![run]))
        }
        Target::Turn(session, generation) => {
            let page = client.runs(session, Some(generation.saturating_add(1)), 1).await;
            let page = page.map_err(|error| error.about(session))?;
            let run = page.data.into_iter().find(|run| run.generation == *generation);
            let run = run.ok_or_else(|| {
                let detail = format!("session {session} has no turn {generation}");
                CliError::api(Code::RunNotFound, detail)
            })?;
            let input = client.input(&run.input_id, Duration::ZERO).await?;
            Ok((Some(input), vec![run]))
        }
        Target::Input(id) => {
            let input = client.input(id, Duration::ZERO).await;
            let input = input.map_err(|error| error.about(id))?;
            let mut runs = Vec::new();
            let mut next = input.receipt.run_id.clone();
            // The whole story of the input: its last run, and those that it goes on from.
            while let Some(id) = next {
                let run = client.run(&id).await?;
                next = run.continues.clone().filter(|_| run.attempt > 0);
                runs.push(run);
            }
            runs.reverse();
            Ok((Some(input), runs))
        }
    }
}

async fn flight(client: &dyn Client, run: Run) -> Result<Flight> {
    let mut pages = Pages::new(client, &run.run_id);
    let (mut events, mut malformed) = (Vec::new(), Vec::new());
    while let Some(page) = pages.next().await? {
        events.extend(page.events);
        malformed.extend(page.malformed);
    }
    Ok(Flight { run, events, malformed })
}

/// A run's journal as it is now, a page at a time.
pub(super) struct Pages<'c> {
    client: &'c dyn Client,
    run: String,
    after: u64,
    /// Where the journal ended when the last page was read.
    end: Option<u64>,
}

impl<'c> Pages<'c> {
    pub(super) fn new(client: &'c dyn Client, run: &str) -> Self {
        Self { client, run: run.to_owned(), after: 0, end: None }
    }

    /// The next page; `None` behind the last one.
    pub(super) async fn next(&mut self) -> Result<Option<RunEvents>> {
        if self.end.is_some_and(|end| self.after >= end) {
            return Ok(None);
        }
        let page = self.client.run_events(&self.run, self.after, PAGE).await?;
        let mut last = self.after;
        for raw in &page.events {
            last = last.max(Event::of_json(raw)?.said.seq.unwrap_or(0));
        }
        last = page.malformed.iter().map(|bad| bad.seq).fold(last, u64::max);
        if last == self.after {
            // A range of numbers may be a gap that a power loss left.
            last = last.saturating_add(u64::from(PAGE));
        }
        self.after = last;
        self.end = Some(page.last_seq);
        Ok(Some(page))
    }
}

fn describe(record: &Record, every_event: bool, paint: Paint) -> Result<String> {
    let mut out = String::new();
    let mut row = |name: &str, value: &str| {
        // Writing to a text cannot fail.
        let _ = writeln!(out, "{name:<10} {value}");
    };
    if let Some(input) = &record.input {
        let receipt = &input.receipt;
        row("input", &receipt.input_id);
        row("session", &receipt.session_id);
        row("said", &one_line(&input.text, 200));
        row("accepted", &precise(&input.accepted_at));
        row(
            "status",
            &match (&receipt.outcome, receipt.position) {
                (Some(outcome), _) => outcome.clone(),
                (None, Some(position)) => format!("{}, place {position}", receipt.status),
                (None, None) => receipt.status.clone(),
            },
        );
        if let Some(other) = &receipt.waiting_for {
            row("waits for", &format!("{} since {}", other.node, precise(&other.since)));
        }
        if let Some(ended) = &input.ended_at {
            row("ended", &precise(ended));
        }
    }
    if record.runs.is_empty() {
        out.push_str("\nno turn has begun\n");
    }
    for flight in &record.runs {
        out.push('\n');
        run(&mut out, flight, every_event, paint)?;
    }
    Ok(out)
}

fn run(out: &mut String, flight: &Flight, every_event: bool, paint: Paint) -> Result<()> {
    let run = &flight.run;
    let _ = writeln!(
        out,
        "{}",
        paint.strong(&format!("turn {} of {}: {}", run.generation, run.session_id, run.run_id))
    );
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(out, "{name:<10} {value}");
    };
    let how = match (&run.terminal_state, run.interrupted_virtually) {
        (Some(state), _) => state.clone(),
        (None, true) => "nobody works on it; its interruption is not recorded yet".to_owned(),
        (None, false) => run.state.clone(),
    };
    row("state", &how);
    row("model", &run.model);
    row("node", &run.node);
    row("started", &precise(&run.started_at));
    if let Some(ended) = &run.ended_at {
        row("ended", &format!("{} (took {})", precise(ended), between(&run.started_at, ended)));
    }
    if let Some(before) = &run.continues {
        let by = match run.attempt {
            0 => "as a person asked".to_owned(),
            attempt => format!("attempt {attempt}"),
        };
        row("goes on", &format!("from {before}, {by}"));
    }
    if let Some(cause) = &run.cause {
        row("cause", cause);
    }
    if let Some(seen) = &run.evidence {
        row("evidence", &one_line(&seen.text, 1_000));
        let gone = match seen.holder_gone {
            Some(true) => "gone",
            Some(false) => "alive",
            None => "not known",
        };
        row("", &format!("holder {} ({gone}), observer {}", seen.holder, seen.observer));
    }
    if let Some(error) = &run.error {
        row("error", &format!("{} ({})", one_line(&error.message, 1_000), error.code));
        if let Some(hint) = &error.hint {
            row("hint", hint);
        }
    }
    if let Some(usage) = &run.usage {
        let cached = usage.cached_input_tokens.map(|n| format!(" ({n} cached)"));
        let reasoning = usage.reasoning_tokens.map(|n| format!(" ({n} reasoning)"));
        row(
            "tokens",
            &format!(
                "{} in{}, {} out{}",
                usage.input_tokens,
                cached.unwrap_or_default(),
                usage.output_tokens,
                reasoning.unwrap_or_default()
            ),
        );
    }
    out.push('\n');
    let events = flight.events.iter().map(|raw| Event::of_json(raw)).collect::<Result<Vec<_>>>()?;
    for line in timeline(&run.started_at, &events, every_event) {
        let _ = writeln!(out, "{line}");
    }
    for bad in &flight.malformed {
        let _ = writeln!(
            out,
            "{}",
            paint.bad(&format!("{:>6}  cannot be read: {}", bad.seq, bad.error))
        );
    }
    Ok(())
}

/// One line per event; pieces of text and output that follow each other share one.
fn timeline(start: &str, events: &[Event], every_event: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut at = 0;
    while let Some(event) = events.get(at) {
        let said = &event.said;
        let seq = said.seq.unwrap_or(0);
        let when = between(start, &said.at);
        let alike = |other: &Event| other.name() == event.name() && is_piece(other.name());
        let count = events.iter().skip(at).take_while(|other| alike(other)).count();
        if count > 1 && !every_event {
            let chars: usize = events
                .iter()
                .skip(at)
                .take(count)
                .filter_map(|piece| piece.said.text.as_deref())
                .map(|text| text.chars().count())
                .sum();
            lines.push(format!(
                "{seq:>6}  +{when:<12} {} x {count}: {chars} characters",
                event.name()
            ));
            at += count;
            continue;
        }
        let what = detail(event);
        lines.push(format!("{seq:>6}  +{when:<12} {} {what}", event.name()).trim_end().to_owned());
        at += 1;
    }
    lines
}

fn is_piece(name: &str) -> bool {
    matches!(name, "text.delta" | "reasoning.delta" | "tool.output")
}

fn detail(event: &Event) -> String {
    let said = &event.said;
    match event.name() {
        "run.started" => {
            let of = said.continues.as_deref().map(|run| format!(", going on from {run}"));
            format!("{}{}", said.model.as_deref().unwrap_or_default(), of.unwrap_or_default())
        }
        "tool.intended" => said.call.as_ref().map_or_else(String::new, |call| {
            format!("{} ({}) {}", call.name, call.effect, arguments(call, 160))
        }),
        "tool.finished" => said.call.as_ref().map_or_else(String::new, |call| {
            let took = call.started_at.as_deref().zip(call.ended_at.as_deref());
            let took = took.map(|(from, to)| format!(" in {}", between(from, to)));
            format!("{} {}{}", call.name, call.state, took.unwrap_or_default())
        }),
        "prompt.opened" | "prompt.settled" => {
            said.prompt.as_ref().map_or_else(String::new, |prompt| {
                let answer =
                    prompt.choice.as_deref().or(prompt.text.as_deref()).unwrap_or_default();
                let by = prompt.answered_by.as_deref().map(|by| format!(" by {by}"));
                format!("{} {} {answer}{}", prompt.id, prompt.state, by.unwrap_or_default())
            })
        }
        "text.snapshot" => {
            let (what, text) = match (&said.reasoning, &said.output) {
                (Some(text), _) => ("reasoning.delta", text.as_str()),
                (None, Some(text)) => ("tool.output", text.as_str()),
                (None, None) => ("text.delta", said.text.as_deref().unwrap_or_default()),
            };
            // Other events have other things under these names.
            #[derive(serde::Deserialize)]
            struct Range {
                from: u64,
                to: u64,
            }
            let range = serde_json::from_str::<Range>(&event.raw);
            let count = range.map_or(1, |range| range.to.saturating_sub(range.from) + 1);
            format!("{what} x {count}: {} characters", text.chars().count())
        }
        "run.failed" => said.error.as_ref().map_or_else(String::new, |error| error.code.clone()),
        "run.interrupted" => said.cause.clone().unwrap_or_default(),
        "run.cancelled" => said.by.as_deref().map(|by| format!("by {by}")).unwrap_or_default(),
        "usage" => format!(
            "{} in, {} out",
            said.input_tokens.unwrap_or(0),
            said.output_tokens.unwrap_or(0)
        ),
        _ => said.text.as_deref().map(|text| one_line(text, 160)).unwrap_or_default(),
    }
}

/// A time to the millisecond, local.
fn precise(wire: &str) -> String {
    let ms = wire.get(19..23).unwrap_or_default();
    format!("{}{ms}", table::time(wire))
}

fn between(from: &str, to: &str) -> String {
    let ms = |text: &str| text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
    match (ms(from), ms(to)) {
        (Some(from), Some(to)) => duration(to - from),
        _ => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_what_they_name() {
        assert!(matches!(Target::parse("run_1").unwrap(), Target::Run(_)));
        assert!(matches!(Target::parse("inp_1").unwrap(), Target::Input(_)));
        let Target::Turn(session, generation) = Target::parse("a.b:7").unwrap() else { panic!() };
        assert_eq!((session.as_str(), generation), ("a.b", 7));
        for bad in ["", "a", "a:", "a:x", "../x:1", ":1"] {
            assert_eq!(Target::parse(bad).err().unwrap().code, "usage", "{bad:?}");
        }
    }

    #[test]
    fn a_pruned_range_is_told_like_its_pieces() {
        for (rest, shown) in [
            (r#""text":"Hello""#, "text.delta x 4: 5 characters"),
            (r#""text":"","reasoning":"hm""#, "reasoning.delta x 4: 2 characters"),
            (r#""text":"","call_id":"c","output":"abc""#, "tool.output x 4: 3 characters"),
        ] {
            let raw =
                format!(r#"{{"event":"text.snapshot","seq":5,"from":2,"to":5,"at":"",{rest}}}"#);
            assert_eq!(detail(&Event::parse(&raw).unwrap()), shown);
        }
    }

    #[test]
    fn pieces_that_follow_each_other_share_a_line() {
        let event = |seq: u64, name: &str, ms: u64, rest: &str| {
            let raw = format!(
                r#"{{"event":"{name}","seq":{seq},"at":"2026-11-30T06:00:00.{ms:03}Z"{rest}}}"#
            );
            Event::parse(&raw).unwrap()
        };
        let events = [
            event(1, "run.started", 0, r#","model":"script/demo""#),
            event(2, "text.delta", 5, r#","text":"Hel""#),
            event(3, "text.delta", 9, r#","text":"lo""#),
            event(4, "run.completed", 12, r#","message_id":2"#),
        ];
        let start = "2026-11-30T06:00:00.000Z";
        assert_eq!(
            timeline(start, &events, false),
            [
                "     1  +0 ms         run.started script/demo",
                "     2  +5 ms         text.delta x 2: 5 characters",
                "     4  +12 ms        run.completed",
            ]
        );
        assert_eq!(timeline(start, &events, true).len(), 4);
    }
}
