//! `everturn attach`: a session as it happens.

use everturn_api::Code;

use crate::cli;
use crate::client::local::session_id;
use crate::client::{Event, Item};
use crate::connect;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::link::{Link, News};
use crate::render::{self, Renderer};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::surface::{Streams, Surface};
use crate::term::{Term, harmless};

pub(crate) async fn run(args: cli::Attach, settings: &Settings, term: Term) -> Result<Exit> {
    let session = session_id(&args.session)?;
    let client = connect::watcher(settings).await?;
    let found = client.session(session.as_str()).await?;
    let Some(found) = found else {
        let detail = format!("there is no session {session}");
        return Err(CliError::api(Code::SessionNotFound, detail));
    };
    let mut screen = Streams::new(term);
    let mut signals = Signals::new()?;
    let patience = settings.reconnect_s.value.seconds();
    let after = args.after.unwrap_or(found.offset);
    let mut link = Link::new(&*client, session.as_str(), Some(after), true, patience);
    let mut watching = Watching { renderer: Renderer::default(), json: args.json };
    let done = loop {
        let news = tokio::select! {
            news = link.next() => news,
            _ = signals.next() => {
                if let Some(cursor) = link.cursor() {
                    screen.talk(&format!("go on with: everturn attach {session} --after {cursor}"));
                }
                break Ok(Exit::Completed);
            }
        };
        match news {
            Ok(News::Item(Item::End)) => {
                screen.talk("the session was deleted");
                break Ok(Exit::Completed);
            }
            Ok(news) => watching.news(news, &mut screen, patience.as_secs()),
            // The last word before contact was lost may have been that it is gone.
            Err(error) => break Err(error),
        }
        if screen.broken() {
            break Ok(Exit::Completed);
        }
    };
    screen.break_data();
    client.close().await;
    done
}

struct Watching {
    renderer: Renderer,
    json: bool,
}

impl Watching {
    fn news(&mut self, news: News, screen: &mut Streams, patience_s: u64) {
        match news {
            News::Lost(error) => {
                let what = error.message;
                screen.talk(&format!("lost contact ({what}); trying again for {patience_s} s"));
            }
            News::Back => screen.talk("back in contact"),
            News::Item(Item::Event(event)) if self.json => screen.line(&event.raw),
            News::Item(Item::Event(event)) => show(&mut self.renderer, &event, screen),
            News::Item(Item::Reset { reason, latest }) => {
                screen
                    .talk(&format!("the feed does not go there ({reason}); going on at {latest}"));
            }
            News::Item(_) => {}
        }
    }
}

/// One event of a feed for somebody who watches: who said what, and how it went.
pub(crate) fn show(renderer: &mut Renderer, event: &Event, to: &mut dyn Surface) {
    let said = &event.said;
    let paint = to.paint();
    match event.name() {
        "input.accepted" if said.kind.as_deref() == Some("message") => {
            to.break_data();
            let text = harmless(said.text.as_deref().unwrap_or_default()).into_owned();
            to.talk(&format!("{} {text}", paint.name(">")));
        }
        "input.cancelled" => {
            let reason = said.reason.as_deref().unwrap_or("withdrawn");
            to.talk(&paint.quiet(&format!("an input was withdrawn: {reason}")));
        }
        "run.started" => {
            // A continuation goes on with the text where it broke off.
            if said.continues.is_none() {
                to.break_data();
            } else {
                to.talk(&paint.quiet(&render::going_on(said.attempt)));
            }
        }
        "prompt.opened" => {
            if let Some(prompt) = &said.prompt {
                to.talk(&format!("? {}", paint.strong(&render::question(prompt))));
            }
        }
        "prompt.settled" => {
            if let Some(prompt) = &said.prompt {
                let answer = prompt.choice.as_deref().or(prompt.text.as_deref());
                to.talk(&paint.quiet(&format!("  {}", answer.unwrap_or(&prompt.state))));
            }
        }
        _ => renderer.event(event, to),
    }
    if event.is_terminal() && event.name() != "run.interrupted" {
        to.break_data();
    }
}
