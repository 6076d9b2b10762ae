//! `everturn run`: one input, streamed to the terminal.

use std::io::{BufRead as _, Read as _};

use everturn_api::request::SubmitInput;
use everturn_core::{RequestId, limits};
use tokio::sync::mpsc;

use crate::cli;
use crate::client::local::session_id;
use crate::connect::{self, Work};
use crate::error::{CliError, Fault, Result};
use crate::exit::Exit;
use crate::follow::{self, Order};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::surface::{Streams, Surface as _};
use crate::term::Term;

pub(crate) async fn run(args: cli::Run, settings: &Settings, term: Term) -> Result<Exit> {
    let text = match args.text.as_str() {
        "-" => stdin_text()?,
        text => text.to_owned(),
    };
    if text.trim().is_empty() {
        return Err(CliError::usage("there is nothing to say")
            .hint("everturn run 'TEXT', or - to read it from stdin"));
    }
    let request = match &args.request_id {
        Some(id) => RequestId::new(id).map_err(|error| {
            CliError::usage(format!("the request id {id:?}: {error}"))
                .hint("use 1 to 255 visible ASCII characters")
        })?,
        None => connect::fresh_request()?,
    };
    let mut screen = Streams::new(term);
    let session = match &args.session {
        Some(id) => session_id(id)?,
        None => {
            if args.request_id.is_some() {
                // The same name in a new conversation would be a new input each time.
                return Err(CliError::usage("--request-id needs --session")
                    .hint("an input is known by its session and its request id together"));
            }
            connect::fresh_session()?
        }
    };
    let mut signals = Signals::new()?;
    let work = Work {
        role: "run",
        session: &session,
        request: args.request_id.is_some().then_some(&request),
        allow: &args.allow,
        can_ask: term.can_ask(),
        own_flags: &[
            ("--model", connect::from_flag(&settings.model.source)),
            ("--workspace", connect::from_flag(&settings.workspace.source)),
        ],
    };
    let connected = connect::worker(settings, work).await?;
    for notice in connected.notices {
        screen.talk(&notice);
    }
    if args.session.is_none() {
        let line = format!("session {session}");
        screen.talk(&screen.paint().quiet(&line));
    }
    let order = Order {
        session: session.to_string(),
        input: SubmitInput {
            text: Some(text),
            request_id: Some(request.to_string()),
            ..SubmitInput::default()
        },
        allow: args.allow,
        patience: settings.reconnect_s.value.seconds(),
        wait: settings.wait_s.value.seconds(),
        person: term.can_ask().then(lines_of_stdin),
        json: args.json,
    };
    let client = connected.client;
    let followed = follow::follow(&*client, order, &mut signals, &mut screen).await;
    let exit = match followed {
        Ok(ended) if Exit::of_outcome(&ended.outcome) == Exit::Interrupted => {
            Err(ended.interruption(&*client, session.as_str()).await)
        }
        Ok(ended) => Ok(Exit::of_outcome(&ended.outcome)),
        Err(error) => {
            screen.break_data();
            Err(error)
        }
    };
    client.close().await;
    exit
}

/// All of stdin, within the limit of an input.
fn stdin_text() -> Result<String> {
    let mut bytes = Vec::new();
    let limit = limits::TEXT_BYTES_MAX as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| CliError::new(Fault::Io, format!("cannot read stdin: {error}")))?;
    let text = String::from_utf8(bytes)
        .map_err(|error| CliError::usage(format!("stdin is not UTF-8: {}", error.utf8_error())))?;
    // The line end that `echo` adds is nobody's word.
    Ok(text.strip_suffix('\n').map_or_else(|| text.clone(), str::to_owned))
}

/// Lines that the person types, read on a thread of its own: reading a terminal cannot be cancelled.
fn lines_of_stdin() -> mpsc::UnboundedReceiver<String> {
    let (send, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if send.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
