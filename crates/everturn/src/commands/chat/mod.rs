//! `everturn chat`: a conversation in the terminal, or over a pipe.

mod keyboard;
mod screen;
mod talk;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use everturn_api::Code;
use everturn_api::prompt::Prompt;
use everturn_api::request::SubmitInput;
use everturn_core::SessionId;
use tokio::time::Instant;

use crate::cli;
use crate::client::local::session_id;
use crate::client::{Client, Event, Item, Place, Window};
use crate::commands::attach;
use crate::connect::{self, Work};
use crate::error::{CliError, Fault, Result};
use crate::exit::Exit;
use crate::follow::first_offset;
use crate::home::Home;
use crate::link::{Link, News};
use crate::render::{self, Renderer};
use crate::settings::Settings;
use crate::signals::{Ask, Signals};
use crate::surface::{Streams, Surface as _};
use crate::term::{Term, harmless, one_line};
use keyboard::{Keyboard, Restore, Typed};
use screen::Screen;

/// How often inputs whose end was missed are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long the last event of a turn whose end is known is waited for.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
/// Messages of an older conversation that are shown at the start.
const RECALL: u32 = 4;

pub(crate) async fn run(args: cli::Chat, settings: &Settings, term: Term) -> Result<Exit> {
    let session = match &args.session {
        Some(id) => session_id(id)?,
        None => connect::fresh_session()?,
    };
    let in_terminal = term.stdin_tty && term.stdout_tty;
    let mut signals = Signals::new()?;
    let work = Work {
        role: "chat",
        session: &session,
        request: None,
        allow: &args.allow,
        can_ask: in_terminal || term.can_ask(),
        own_flags: &[
            ("--model", connect::from_flag(&settings.model.source)),
            ("--workspace", connect::from_flag(&settings.workspace.source)),
        ],
    };
    let connected = connect::worker(settings, work).await?;
    let _restore = Restore::new();
    let (keyboard, screen) = if in_terminal {
        let history = Home::make(settings)?.file("chat-history");
        let (keyboard, above) = Keyboard::terminal(history)?;
        (keyboard, Screen::terminal(term, above))
    } else {
        (Keyboard::pipe(), Screen::Streams(Streams::new(term)))
    };
    let mut chat = Chat {
        client: &*connected.client,
        session,
        allow: args.allow,
        can_ask: in_terminal || term.can_ask(),
        in_terminal,
        screen,
        keyboard,
        renderer: Renderer::default(),
        outbox: VecDeque::new(),
        mine: BTreeMap::new(),
        shown: BTreeSet::new(),
        own_requests: BTreeSet::new(),
        running: None,
        interrupted: None,
        told: None,
        prompt: None,
        asked: None,
        live: false,
        prompting: false,
        interrupted_at: None,
        closing: false,
        exit: Exit::Completed,
    };
    for notice in connected.notices {
        chat.talk(&notice);
    }
    let done = chat.hold(&mut signals, settings.reconnect_s.value.seconds()).await;
    chat.screen.typing(false);
    chat.screen.break_data();
    let busy = chat.running.is_some() || !chat.mine.is_empty();
    if in_terminal || busy {
        let session = &chat.session;
        let line = format!("go on with: everturn chat --session {session}");
        chat.screen.talk(&line);
    }
    if busy && connected.client.place() == Place::Here {
        chat.talk("a turn was under way: it goes on from where it is when somebody goes on with the conversation");
    }
    connected.client.close().await;
    done
}

/// An input on its way.
struct Outgoing {
    request_id: String,
    text: String,
}

struct Chat<'a> {
    client: &'a dyn Client,
    session: SessionId,
    allow: Vec<String>,
    can_ask: bool,
    in_terminal: bool,
    screen: Screen,
    keyboard: Keyboard,
    renderer: Renderer,
    /// Not accepted yet, in order.
    outbox: VecDeque<Outgoing>,
    /// Accepted here, and not ended or not shown to the end; with the moment at which the end was
    /// learnt of.
    mine: BTreeMap<String, Option<Instant>>,
    /// Runs whose last event was shown.
    shown: BTreeSet<String>,
    own_requests: BTreeSet<String>,
    /// Generation and run of the turn under way.
    running: Option<(u64, String)>,
    /// Generation of an interrupted turn that waits for a decision, and why it waits.
    interrupted: Option<(u64, Option<String>)>,
    /// The interrupted turn that the person was told of.
    told: Option<u64>,
    prompt: Option<Prompt>,
    /// The prompt that was put to the person.
    asked: Option<String>,
    live: bool,
    /// Whether the keyboard shows its prompt.
    prompting: bool,
    interrupted_at: Option<Instant>,
    /// The pipe has ended: leave when everything is answered.
    closing: bool,
    exit: Exit,
}

/// Whether the conversation goes on.
enum Next {
    On,
    Leave(Exit),
}

impl Chat<'_> {
    async fn hold(&mut self, signals: &mut Signals, patience: Duration) -> Result<Exit> {
        let client = self.client;
        let session = self.session.to_string();
        let after = self.recall().await?;
        let mut link = after.map(|after| Link::new(client, &session, Some(after), true, patience));
        self.greet();
        let mut looks = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
        loop {
            if link.is_none() && !self.outbox.is_empty() {
                // The conversation begins with its first input.
                link = Some(Link::new(client, &session, Some(0), true, patience));
                self.send_out(link.as_mut()).await?;
                continue;
            }
            if self.closing && self.outbox.is_empty() && self.mine.is_empty() {
                return Ok(self.exit);
            }
            if self.screen.broken() {
                return Err(CliError::new(Fault::Io, "nobody reads stdout any more"));
            }
            self.set_prompt();
            let next = tokio::select! {
                news = news(&mut link) => {
                    let next = self.news(news, patience).await;
                    self.after(next, link.as_mut())?
                }
                typed = self.keyboard.next(), if !self.closing => {
                    let next = self.typed(typed).await;
                    let next = self.after(next, link.as_mut())?;
                    if link.is_some() {
                        self.send_out(link.as_mut()).await?;
                    }
                    next
                }
                ask = signals.next() => match ask {
                    Ask::Interrupt => {
                        let next = self.interrupt().await;
                        self.after(next, link.as_mut())?
                    }
                    Ask::Terminate => Next::Leave(Exit::Interrupted),
                },
                _ = looks.tick() => {
                    let looked = self.look().await.map(|()| Next::On);
                    self.send_out(link.as_mut()).await?;
                    self.after(looked, link.as_mut())?
                }
            };
            if let Next::Leave(exit) = next {
                return Ok(exit);
            }
        }
    }

    /// What a failed call means: the other side may be away, or the person is told and goes on.
    fn after(&mut self, next: Result<Next>, link: Option<&mut Link<'_>>) -> Result<Next> {
        match next {
            Ok(next) => Ok(next),
            Err(error) if error.passing => {
                match link {
                    Some(link) => link.suspect(error),
                    None => self.complain(&error),
                }
                Ok(Next::On)
            }
            Err(error) => Err(error),
        }
    }

    /// The end of an older conversation, and where its feed goes on. `None` for one that does not
    /// exist yet.
    async fn recall(&mut self) -> Result<Option<u64>> {
        let Some(session) = self.client.session(self.session.as_str()).await? else {
            return Ok(None);
        };
        let page = self.client.messages(self.session.as_str(), Window::Last, RECALL).await?;
        let running = session.running.as_ref().map(|running| running.run_id.clone());
        for message in &page.data {
            // What the turn under way said comes from the feed.
            if message.run_id.is_some() && message.run_id == running && message.role != "user" {
                continue;
            }
            if message.text.is_empty() {
                continue;
            }
            let text = harmless(&message.text).into_owned();
            match message.role.as_str() {
                "user" => self.talk(&format!("> {text}")),
                "assistant" => self.talk(&text),
                _ => {}
            }
        }
        for input in self.client.inputs(self.session.as_str(), Some("queued")).await? {
            if input.kind == "message" {
                self.talk(&format!("queued: {}", one_line(&input.text, 200)));
            }
        }
        if let Some(interrupted) = &session.interrupted {
            self.interrupted = Some((interrupted.generation, interrupted.reason.clone()));
            self.note_interrupted();
        }
        match running {
            Some(run) => Ok(Some(first_offset(self.client, &run).await?)),
            None => Ok(Some(session.offset)),
        }
    }

    fn greet(&mut self) {
        if !self.in_terminal {
            return;
        }
        let place = match self.client.place() {
            Place::Server(address) => format!("through the server at {address}"),
            Place::Here => "in this process".to_owned(),
        };
        let line = format!("session {}, {place}; /help lists what can be typed", self.session);
        let line = self.screen.paint().quiet(&line);
        self.talk(&line);
    }

    /// Shows the prompt when the person is to say something; watches for a key while text streams.
    fn set_prompt(&mut self) {
        if !self.in_terminal {
            return;
        }
        let wanted = (self.running.is_none() && self.mine.is_empty() && self.outbox.is_empty())
            || self.prompt.is_some();
        if wanted && !self.prompting {
            self.show_prompt();
        }
    }

    fn show_prompt(&mut self) {
        self.screen.typing(true);
        self.prompting = true;
        self.keyboard.prompt();
    }

    /// The person's line is over: text streams again, until the next key.
    fn end_prompt(&mut self) {
        self.prompting = false;
        self.screen.typing(false);
        self.keyboard.watch();
    }

    /// Sends what waits, in order. What cannot be sent now stays.
    async fn send_out(&mut self, mut link: Option<&mut Link<'_>>) -> Result<()> {
        while let Some(next) = self.outbox.front() {
            let input = SubmitInput {
                text: Some(next.text.clone()),
                request_id: Some(next.request_id.clone()),
                ..SubmitInput::default()
            };
            match self.client.submit(self.session.as_str(), &input).await {
                Ok(receipt) => {
                    self.outbox.pop_front();
                    if let Some(other) = &receipt.waiting_for {
                        let node = &other.node;
                        self.talk(&format!(
                            "another Everturn process is running this conversation ({node}); queued"
                        ));
                    } else if self.running.is_some() && self.in_terminal {
                        let place = receipt.position.unwrap_or(1);
                        let line = format!("queued, place {place}");
                        let line = self.screen.paint().quiet(&line);
                        self.talk(&line);
                    }
                    if receipt.status != "terminal" {
                        self.mine.insert(receipt.input_id, None);
                    }
                }
                Err(error) if error.passing => {
                    match link.as_mut() {
                        Some(link) => link.suspect(error),
                        None => self.complain(&error),
                    }
                    return Ok(());
                }
                Err(error) => {
                    // Refused: it is said, and the conversation goes on without it.
                    self.outbox.pop_front();
                    self.complain(&error);
                    self.exit = error.exit;
                    if self.mine.is_empty() && error.is(Code::SessionDeleted) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at the inputs that should have an end by now. One that has it is done with when the end
    /// was shown as well.
    async fn look(&mut self) -> Result<()> {
        let ids: Vec<String> = self.mine.keys().cloned().collect();
        for id in ids {
            let input = self.client.input(&id, Duration::ZERO).await?;
            if input.receipt.status != "terminal" {
                continue;
            }
            let run = &input.receipt.run_id;
            let shown = run.as_ref().is_none_or(|run| self.shown.contains(run));
            let known = self.mine.get(&id).copied().flatten();
            if !shown && known.is_none_or(|at| at.elapsed() < SHOWN_WITHIN) {
                self.mine.insert(id, known.or_else(|| Some(Instant::now())));
                continue;
            }
            self.mine.remove(&id);
            let outcome = Exit::of_outcome(input.receipt.outcome.as_deref().unwrap_or_default());
            if outcome != Exit::Completed {
                self.exit = outcome;
            }
        }
        Ok(())
    }

    async fn news(&mut self, news: Result<News>, patience: Duration) -> Result<Next> {
        match news {
            Ok(News::Item(Item::Event(event))) => self.event(&event).await?,
            Ok(News::Item(Item::CaughtUp)) => {
                self.live = true;
                // What was recorded while contact was lost came as history.
                self.note_interrupted();
                self.settle_prompt().await?;
                self.look().await?;
            }
            Ok(News::Item(Item::Opened)) => self.live = false,
            Ok(News::Item(Item::Reset { reason, .. })) => {
                self.talk(&format!("some of the stream cannot be shown ({reason})"));
                self.running = None;
                self.look().await?;
            }
            Ok(News::Item(Item::End)) => {
                return Err(CliError::api(Code::SessionDeleted, "the session was deleted"));
            }
            Ok(News::Lost(error)) => {
                let seconds = patience.as_secs();
                self.talk(&format!(
                    "lost contact ({}); trying again for {seconds} s",
                    error.message
                ));
            }
            Ok(News::Back) => {
                self.talk("back in contact");
                self.send_out(None).await?;
            }
            // The conversation has not begun for the other side: its first input will begin it.
            Err(error) if error.is(Code::SessionNotFound) => return Err(error),
            Err(error) if error.passing => {
                let message = format!("lost contact for too long: {}", error.message);
                let session = &self.session;
                return Err(CliError::new(Fault::LostContact, message).hint(format!(
                    "what was accepted is safe; go on with: everturn chat --session {session}"
                )));
            }
            Err(error) => return Err(error),
        }
        Ok(Next::On)
    }

    async fn event(&mut self, event: &Event) -> Result<()> {
        let said = &event.said;
        match event.name() {
            "turn.started" => {
                let run = said.run_id.clone().unwrap_or_default();
                self.running = said.generation.map(|generation| (generation, run));
                self.interrupted = None;
            }
            "session.updated" => {
                if let Some(session) = &said.session {
                    self.running = session
                        .running
                        .as_ref()
                        .map(|running| (running.generation, running.run_id.clone()));
                    let turn = session.interrupted.as_ref();
                    self.interrupted = turn.map(|turn| (turn.generation, turn.reason.clone()));
                    if self.live {
                        self.note_interrupted();
                    }
                }
            }
            "input.accepted" => {
                let own = said.request_id.as_ref().is_some_and(|id| self.own_requests.contains(id));
                if !own && said.kind.as_deref() == Some("message") {
                    let text = harmless(said.text.as_deref().unwrap_or_default()).into_owned();
                    self.talk(&format!("> {text}  (sent elsewhere)"));
                }
            }
            "prompt.opened" => self.prompt.clone_from(&said.prompt),
            "prompt.settled" => {
                let settled = said.prompt.as_ref();
                if self.prompt.as_ref().map(|open| &open.id) == settled.map(|prompt| &prompt.id) {
                    self.prompt = None;
                }
                attach::show(&mut self.renderer, event, &mut self.screen);
            }
            _ => attach::show(&mut self.renderer, event, &mut self.screen),
        }
        if event.is_terminal() {
            self.running = None;
            self.prompt = None;
            self.shown.extend(said.run_id.clone());
        }
        if event.is_terminal() || event.name() == "input.cancelled" {
            self.look().await?;
        }
        if self.live {
            self.settle_prompt().await?;
        }
        Ok(())
    }

    /// Says once of an interrupted turn that it waits for the person, and why.
    fn note_interrupted(&mut self) {
        // Without a reason nobody has decided yet whether it goes on by itself.
        let Some((generation, Some(reason))) = &self.interrupted else { return };
        if self.told.replace(*generation) == Some(*generation) {
            return;
        }
        let why = render::not_continued(Some(reason));
        let line = format!("the last turn was interrupted and waits for you; {why}");
        let line = self.screen.paint().warn(&line);
        self.talk(&line);
        self.talk("type /continue, /discard or /resend, or just go on talking");
    }

    fn talk(&mut self, line: &str) {
        self.screen.talk(line);
    }

    fn complain(&mut self, error: &CliError) {
        let paint = self.screen.paint();
        let line = format!("{} {error}", paint.bad("error:"));
        self.talk(&line);
        for hint in &error.hints {
            let line = format!("{} {hint}", paint.strong("hint:"));
            self.talk(&line);
        }
    }
}

/// The next news, once there is a feed.
async fn news(link: &mut Option<Link<'_>>) -> Result<News> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}
