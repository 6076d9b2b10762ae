//! `everturn sessions`: reading and tidying.

use everturn_api::Code;
use everturn_api::message::Message;
use everturn_api::session::Session;

use crate::cli;
use crate::client::local::session_id;
use crate::client::{Client, Event, Item, Listing, PAGE, Window};
use crate::connect::{self, reader};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::render::{self, arguments};
use crate::settings::Settings;
use crate::term::{Term, harmless, one_line};
use crate::{print, table};

/// What to do about a session that cannot be deleted now.
const BUSY: &str = "--force stops its turn, and withdraws what waits, first";

pub(crate) async fn run(args: cli::Sessions, settings: &Settings, term: Term) -> Result<Exit> {
    match args {
        cli::Sessions::List { state, query, limit, json } => {
            list(&*reader(settings).await?, state, query, limit, json).await
        }
        cli::Sessions::Show { id, json } => {
            let id = session_id(&id)?;
            let client = reader(settings).await?;
            let session = existing(&*client, id.as_str()).await?;
            if json {
                print::json(&session)?;
            } else {
                print::text(&describe(&session))?;
            }
            Ok(Exit::Completed)
        }
        cli::Sessions::Messages { id, last, after, json } => {
            let id = session_id(&id)?;
            let client = reader(settings).await?;
            let shown = messages(&*client, id.as_str(), last, after, json, term).await;
            shown.map_err(|error| error.about(id.as_str()))
        }
        cli::Sessions::Export { id, events, after, json: _ } => {
            let id = session_id(&id)?;
            if events {
                // A feed is read as viewers read it, and so needs an engine, which touches no session.
                let client = connect::watcher(settings).await?;
                let exported = export_events(&*client, id.as_str(), after).await;
                client.close().await;
                exported
            } else {
                let exported = export(&*reader(settings).await?, id.as_str()).await;
                exported.map_err(|error| error.about(id.as_str()))
            }
        }
        cli::Sessions::End { id, reason, json } => {
            let id = session_id(&id)?;
            let client = reader(settings).await?;
            let ended = client.end_session(id.as_str(), &reason).await;
            let session = ended.map_err(|error| error.about(id.as_str()))?;
            if json {
                print::json(&session)?;
            } else {
                print::text(&describe(&session))?;
            }
            Ok(Exit::Completed)
        }
        cli::Sessions::Delete { id, force, json } => {
            let id = session_id(&id)?;
            let client = reader(settings).await?;
            let deleted = client.delete_session(id.as_str(), force).await;
            deleted.map_err(|error| match error.is(Code::SessionBusy) && !force {
                true => CliError { hints: vec![BUSY.to_owned()], ..error },
                false => error.about(id.as_str()),
            })?;
            if json {
                print::json(&serde_json::json!({ "id": id.as_str(), "deleted": true }))?;
            } else {
                print::talk(&format!(
                    "session {id} is deleted, with everything that was said in it"
                ));
            }
            Ok(Exit::Completed)
        }
    }
}

async fn existing(client: &dyn Client, id: &str) -> Result<Session> {
    client
        .session(id)
        .await?
        .ok_or_else(|| CliError::api(Code::SessionNotFound, format!("there is no session {id}")))
}

async fn list(
    client: &dyn Client,
    state: Option<String>,
    query: Option<String>,
    limit: u32,
    json: bool,
) -> Result<Exit> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut listing = Listing { state, query, ..Listing::default() };
    loop {
        let left = limit.saturating_sub(u32::try_from(sessions.len()).unwrap_or(u32::MAX));
        if left == 0 {
            break;
        }
        listing.limit = left.min(PAGE);
        let page = client.sessions(&listing).await?;
        sessions.extend(page.data);
        listing.cursor = page.next_cursor;
        if listing.cursor.is_none() {
            break;
        }
    }
    if json {
        print::json(&sessions)?;
        return Ok(Exit::Completed);
    }
    let rows: Vec<_> = sessions
        .iter()
        .map(|session| {
            vec![
                session.id.clone(),
                session.state.clone(),
                session.generation.to_string(),
                session.queue_length.to_string(),
                table::time(&session.updated_at),
                one_line(session.title.as_deref().unwrap_or_default(), 80),
            ]
        })
        .collect();
    print::text(&table::columns(&["ID", "STATE", "TURNS", "QUEUED", "CHANGED", "TITLE"], &rows))?;
    Ok(Exit::Completed)
}

fn describe(session: &Session) -> String {
    let mut rows: Vec<(&str, String)> = vec![
        ("session", session.id.clone()),
        ("title", session.title.clone().unwrap_or_default()),
        ("state", session.state.clone()),
        ("turns", session.generation.to_string()),
        ("queued", session.queue_length.to_string()),
        ("viewers", session.viewers.to_string()),
        ("model", session.model.clone().unwrap_or_else(|| "the process's default".to_owned())),
    ];
    if let Some(running) = &session.running {
        let since = table::time(&running.started_at);
        let going_on = match &running.continuation {
            Some(of) => {
                let by = match of.attempt {
                    0 => "as a person asked".to_owned(),
                    attempt => format!("attempt {attempt}"),
                };
                format!(", going on from turn {} ({by})", of.of_generation)
            }
            None => String::new(),
        };
        rows.push((
            "running",
            format!("{} (turn {}) since {since}{going_on}", running.run_id, running.generation),
        ));
    }
    if let Some(holder) = &session.holder {
        rows.push(("held by", format!("{} since {}", holder.node, table::time(&holder.since))));
    }
    if let Some(interrupted) = &session.interrupted {
        let seen = interrupted.evidence.as_ref().map(|seen| seen.text.clone()).unwrap_or_default();
        rows.push((
            "interrupted",
            format!("{} (turn {}): {seen}", interrupted.run_id, interrupted.generation),
        ));
        let why = render::not_continued(interrupted.reason.as_deref());
        let id = &session.id;
        rows.push(("waits", match interrupted.reason {
            Some(_) => format!("for you; {why}: `everturn chat --session {id}`, then /continue, /discard or /resend"),
            // Nobody has recorded it: whoever works on the conversation next decides.
            None => format!("{why}; a server, or `everturn chat --session {id}`, records it and goes on or asks you"),
        }));
    }
    rows.push(("created", table::time(&session.created_at)));
    rows.push(("changed", table::time(&session.updated_at)));
    if let Some(ended) = &session.ended_at {
        let why = session.end_reason.as_deref().unwrap_or_default();
        rows.push(("ended", format!("{}: {why}", table::time(ended))));
    }
    rows.push(("offset", session.offset.to_string()));
    let lines = rows.iter().map(|(name, value)| format!("{name:<12} {}\n", one_line(value, 500)));
    lines.collect()
}

/// All messages after one, page by page.
async fn all(client: &dyn Client, id: &str, after: u64) -> Result<Vec<Message>> {
    let mut messages: Vec<Message> = Vec::new();
    let mut after = after;
    loop {
        let page = client.messages(id, Window::After(after), PAGE).await?;
        let last = page.data.last().map(|message| message.id);
        messages.extend(page.data);
        match last {
            Some(last) if page.has_more => after = last,
            _ => return Ok(messages),
        }
    }
}

/// The last messages, page by page, in order.
async fn last_of(client: &dyn Client, id: &str, count: u32) -> Result<Vec<Message>> {
    let mut messages: Vec<Message> = Vec::new();
    let mut window = Window::Last;
    let mut left = count;
    while left > 0 {
        let page = client.messages(id, window, left.min(PAGE)).await?;
        let Some(first) = page.data.first().map(|message| message.id) else { break };
        left = left.saturating_sub(u32::try_from(page.data.len()).unwrap_or(u32::MAX));
        messages.splice(0..0, page.data);
        if !page.has_more {
            break;
        }
        window = Window::Before(first);
    }
    Ok(messages)
}

async fn messages(
    client: &dyn Client,
    id: &str,
    last: Option<u32>,
    after: Option<u64>,
    json: bool,
    term: Term,
) -> Result<Exit> {
    let messages = match last {
        Some(last) => last_of(client, id, last).await?,
        None => all(client, id, after.unwrap_or(0)).await?,
    };
    if json {
        print::json(&messages)?;
        return Ok(Exit::Completed);
    }
    let mut text = String::new();
    for message in &messages {
        text.push_str(&show(message, term));
    }
    print::text(&text)?;
    Ok(Exit::Completed)
}

/// One message for people.
fn show(message: &Message, term: Term) -> String {
    let paint = term.out_paint();
    let who = match (message.role.as_str(), message.kind.as_str()) {
        (role, "message") => role.to_owned(),
        (_, kind) => kind.to_owned(),
    };
    let recovered = if message.recovered { ", recovered" } else { "" };
    let mut out = format!(
        "{} {}\n",
        paint.name(&who),
        paint.quiet(&format!("#{} {}{recovered}", message.id, table::time(&message.created_at)))
    );
    let text = if term.stdout_tty { harmless(&message.text) } else { message.text.as_str().into() };
    if !text.is_empty() {
        out.push_str(&text);
        out.push('\n');
    }
    for call in message.tool_calls.iter().flatten() {
        let line = format!("* {} {} [{}]\n", call.name, arguments(call, 200), call.state);
        out.push_str(&line);
    }
    out.push('\n');
    out
}

async fn export(client: &dyn Client, id: &str) -> Result<Exit> {
    let mut after = 0;
    loop {
        let page = client.messages(id, Window::After(after), PAGE).await?;
        print::json_lines(&page.data)?;
        match page.data.last() {
            Some(last) if page.has_more => after = last.id,
            _ => return Ok(Exit::Completed),
        }
    }
}

/// Every event up to now, byte for byte.
async fn export_events(client: &dyn Client, id: &str, after: u64) -> Result<Exit> {
    existing(client, id).await?;
    let mut feed = client.feed(id, Some(after), false).await?;
    loop {
        match feed.next().await? {
            Item::Event(event) => {
                let Event { raw, .. } = *event;
                print::text(&format!("{raw}\n"))?;
            }
            Item::Reset { reason, .. } => {
                let detail = format!("the session's feed does not go there ({reason})");
                return Err(CliError::api(Code::BadCursor, detail));
            }
            Item::CaughtUp | Item::End => return Ok(Exit::Completed),
            Item::Opened => {}
        }
    }
}
