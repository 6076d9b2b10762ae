//! One input from its submission to its end, continuations included.

use std::collections::HashSet;
use std::time::Duration;

use everturn_api::Code;
use everturn_api::input::{Input, Receipt};
use everturn_api::prompt::Prompt;
use everturn_api::request::SubmitInput;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, Event, Item, Place};
use crate::error::{CliError, Fault, Result};
use crate::link::{Link, News};
use crate::render::{self, Renderer};
use crate::signals::{Ask, Signals};
use crate::surface::{Streams, Surface};

/// How often a waiting input is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often a running one is, should its end have been missed.
const LOOK_RUNNING: u32 = 10;

/// What to do with an input.
pub(crate) struct Order {
    /// Its session.
    pub(crate) session: String,
    /// What it says.
    pub(crate) input: SubmitInput,
    /// Tools that run without asking.
    pub(crate) allow: Vec<String>,
    /// How long the other side may be away.
    pub(crate) patience: Duration,
    /// How long the input may wait for its turn.
    pub(crate) wait: Duration,
    /// Lines of a person who can be asked, if there is one.
    pub(crate) person: Option<mpsc::UnboundedReceiver<String>>,
    /// Events as JSON lines instead of text.
    pub(crate) json: bool,
}

/// How an input ended.
pub(crate) struct Ended {
    /// `completed`, `failed`, `cancelled`, `interrupted` or `rejected`.
    pub(crate) outcome: String,
    /// The run that it ended with.
    run: Option<String>,
}

impl Ended {
    /// What is said of an input whose turn was interrupted and waits for a person.
    pub(crate) async fn interruption(&self, client: &dyn Client, session: &str) -> CliError {
        let run = match &self.run {
            Some(run) => client.run(run).await.ok(),
            None => None,
        };
        let parked = run.as_ref().and_then(|run| run.parked.as_deref());
        let why = render::not_continued(parked);
        let error = CliError::new(Fault::Interrupted, format!("the turn was interrupted; {why}"));
        // Only the last interrupted turn of a conversation can be decided about.
        let waits = match (&run, client.session(session).await) {
            (Some(run), Ok(Some(session))) => {
                session.interrupted.is_some_and(|turn| turn.run_id == run.run_id)
            }
            _ => true,
        };
        if waits {
            error.hint(format!(
                "`everturn chat --session {session}`, then /continue goes on with it; /discard leaves it, /resend asks again"
            ))
        } else {
            error.hint(format!(
                "a later turn began or it was decided about: `everturn sessions messages {session}` has what was said; ask again with another --request-id"
            ))
        }
    }
}

/// Submits an input and follows it to its end.
///
/// # Errors
/// What was refused; lost contact; still queued.
pub(crate) async fn follow(
    client: &dyn Client,
    order: Order,
    signals: &mut Signals,
    screen: &mut Streams,
) -> Result<Ended> {
    let (receipt, after) = submit(client, &order, signals, screen).await?;
    if order.json {
        let line = serde_json::json!({ "event": "receipt", "receipt": receipt });
        screen.line(&line.to_string());
    }
    let mut link = Link::new(client, &order.session, Some(after), true, order.patience);
    let mut following = Following {
        client,
        order,
        screen,
        input_id: receipt.input_id.clone(),
        started: false,
        runs: HashSet::new(),
        renderer: Renderer::default(),
        prompt: None,
        asked: None,
        live: false,
        waits_for_other: false,
        stops: 0,
        ended: None,
        seen_end_of: None,
    };
    following.note_waiting(&receipt);
    following.go_on(&mut link, signals).await
}

/// Submits until there is a receipt. Also answers where in the feed the input's story begins.
async fn submit(
    client: &dyn Client,
    order: &Order,
    signals: &mut Signals,
    screen: &mut Streams,
) -> Result<(Receipt, u64)> {
    let until = Instant::now() + order.patience;
    let mut told = false;
    loop {
        let attempt = async {
            // Read before the input is: whatever happens to it lies behind.
            let before = client.session(&order.session).await?.map_or(0, |session| session.offset);
            let receipt = client.submit(&order.session, &order.input).await?;
            let after = match &receipt.run_id {
                Some(run) if receipt.replayed => first_offset(client, run).await?,
                _ => before,
            };
            Ok::<_, CliError>((receipt, after))
        };
        let error = tokio::select! {
            answer = attempt => match answer {
                Ok(answer) => return Ok(answer),
                Err(error) if error.passing && Instant::now() < until => error,
                Err(error) => return Err(unsure(error, order)),
            },
            _ = signals.next() => {
                let message = "left before the server answered";
                return Err(unsure(CliError::new(Fault::LostContact, message), order));
            }
        };
        if !std::mem::replace(&mut told, true) {
            screen.talk(&format!("{} {error}; trying again", screen.paint().warn("waiting:")));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
        if let Err(error) = client.find_again().await
            && !error.passing
        {
            return Err(error);
        }
    }
}

/// Nobody knows whether the input was accepted: repeating it under the same name is safe.
fn unsure(error: CliError, order: &Order) -> CliError {
    if error.code != Fault::LostContact.code() {
        return error;
    }
    let id = order.input.request_id.as_deref().unwrap_or_default();
    error.hint(format!(
        "whether it was accepted is not known; the same command with --session {} --request-id {id} is safe and says it once",
        order.session
    ))
}

/// The feed position directly before the first run of the chain that `run` is the last of.
pub(crate) async fn first_offset(client: &dyn Client, run: &str) -> Result<u64> {
    let mut id = run.to_owned();
    loop {
        let run = client.run(&id).await?;
        match run.continues {
            // A person's own *continue* begins a chain of its own, with an input of its own.
            Some(before) if run.attempt > 0 => id = before,
            _ => break,
        }
    }
    let events = client.run_events(&id, 0, 1).await?;
    let first = events.events.first().map(|raw| Event::of_json(raw)).transpose()?;
    Ok(first.and_then(|event| event.said.offset).map_or(0, |offset| offset.saturating_sub(1)))
}

struct Following<'a> {
    client: &'a dyn Client,
    order: Order,
    screen: &'a mut Streams,
    input_id: String,
    started: bool,
    /// The runs of this input's chain.
    runs: HashSet<String>,
    renderer: Renderer,
    /// The open prompt of one of them.
    prompt: Option<Prompt>,
    /// The prompt that was put to the person.
    asked: Option<String>,
    live: bool,
    waits_for_other: bool,
    stops: u32,
    /// The input, once it has its outcome.
    ended: Option<Input>,
    /// The run whose last event was shown last, and the outcome that this means for the input if it
    /// means one.
    seen_end_of: Option<(String, Option<&'static str>)>,
}

impl Following<'_> {
    async fn go_on(mut self, link: &mut Link<'_>, signals: &mut Signals) -> Result<Ended> {
        let wait_until = Instant::now() + self.order.wait;
        let mut looks = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ticks = 0_u32;
        // When the end is known but its event has not come: it is not waited for for ever.
        let mut give_up_at: Option<Instant> = None;
        let mut look_now = true;
        loop {
            if std::mem::take(&mut look_now) {
                match self.look().await {
                    Ok(()) if self.waits() && Instant::now() >= wait_until => {
                        return Err(self.still_queued());
                    }
                    Ok(()) => {}
                    // A server that leaves may do so with the last word: it needs no asking about.
                    Err(error) if error.passing => match self.told() {
                        Some(outcome) => return Ok(self.finish(outcome, None)),
                        None => link.suspect(error),
                    },
                    Err(error) => return Err(error),
                }
            }
            if let Some(input) = self.over(give_up_at) {
                let outcome = input.receipt.outcome.clone().unwrap_or_default();
                return Ok(self.finish(outcome, Some(input)));
            }
            if self.ended.is_some() && give_up_at.is_none() {
                give_up_at = Some(Instant::now() + Duration::from_secs(5));
            }
            if self.screen.broken() {
                // Whoever read the answer went away; the turn goes on without a listener.
                return Err(
                    CliError::new(Fault::Io, "nobody reads stdout any more").hint(self.safe())
                );
            }
            tokio::select! {
                news = link.next() => look_now = self.news(news, link).await?,
                ask = signals.next() => self.asked_to(ask).await?,
                Some(line) = typed(&mut self.order.person) => self.answer(&line).await?,
                _ = looks.tick() => {
                    ticks = ticks.wrapping_add(1);
                    look_now = !self.started || self.ended.is_some() || ticks.is_multiple_of(LOOK_RUNNING);
                }
                () = sleep_until(wait_until), if self.waits() && Instant::now() < wait_until => {
                    look_now = true;
                }
            }
        }
    }

    fn waits(&self) -> bool {
        !self.started && self.ended.is_none()
    }

    /// Whether everything is said: the outcome is known and its run's last event was shown.
    fn over(&mut self, give_up_at: Option<Instant>) -> Option<Input> {
        let input = self.ended.as_ref()?;
        let shown = match &input.receipt.run_id {
            Some(run) => self.seen_end_of.as_ref().is_some_and(|(seen, _)| seen == run),
            None => true,
        };
        let late = give_up_at.is_some_and(|at| Instant::now() >= at);
        if shown || late { self.ended.take() } else { None }
    }

    /// The outcome, as far as the last event alone says it.
    fn told(&self) -> Option<String> {
        self.seen_end_of.as_ref().and_then(|(_, outcome)| outcome.map(str::to_owned))
    }

    fn finish(self, outcome: String, input: Option<Input>) -> Ended {
        self.screen.break_data();
        if self.order.json {
            let line = serde_json::json!({
                "event": "input.ended",
                "input_id": self.input_id,
                "outcome": outcome,
                "input": input,
            });
            self.screen.line(&line.to_string());
        }
        let run = input.and_then(|input| input.receipt.run_id);
        Ended { outcome, run }
    }

    /// Looks at the input itself.
    async fn look(&mut self) -> Result<()> {
        let input = self.client.input(&self.input_id, Duration::ZERO).await?;
        match input.receipt.status.as_str() {
            "terminal" => self.ended = Some(input),
            "queued" => self.note_waiting(&input.receipt),
            _ => self.begun(),
        }
        Ok(())
    }

    fn begun(&mut self) {
        if !std::mem::replace(&mut self.started, true) && self.waits_for_other {
            self.talk("the conversation is free again");
        }
    }

    fn note_waiting(&mut self, receipt: &Receipt) {
        if receipt.status != "queued" {
            return;
        }
        match &receipt.waiting_for {
            Some(other) if !self.waits_for_other => {
                self.waits_for_other = true;
                self.talk(&format!(
                    "another Everturn process is running this conversation ({}, since {}); waiting",
                    other.node, other.since
                ));
            }
            _ => {}
        }
    }

    fn talk(&mut self, line: &str) {
        self.screen.talk(line);
    }

    fn safe(&self) -> String {
        format!(
            "the input is safe: {}; `everturn run --session {} --request-id {} …` with the same text goes on with it, `everturn turn show {}` says how it is",
            self.input_id,
            self.order.session,
            self.order.input.request_id.as_deref().unwrap_or_default(),
            self.input_id
        )
    }

    fn still_queued(&self) -> CliError {
        let message = format!("the input {} is still queued", self.input_id);
        CliError::new(Fault::StillQueued, message).hint(self.safe())
    }

    /// Takes in one piece of news; answers whether to look at the input itself.
    async fn news(&mut self, news: Result<News>, link: &mut Link<'_>) -> Result<bool> {
        match news {
            Ok(News::Lost(error)) => {
                let patience = self.order.patience.as_secs();
                let what = error.message;
                self.talk(&format!("lost contact ({what}); trying again for {patience} s"));
                Ok(false)
            }
            Ok(News::Back) => {
                self.talk("back in contact");
                Ok(true)
            }
            Ok(News::Item(Item::Event(event))) => match self.event(&event).await {
                Err(error) if error.passing => {
                    link.suspect(error);
                    Ok(true)
                }
                done => done,
            },
            Ok(News::Item(Item::CaughtUp)) => {
                self.live = true;
                match self.settle_prompt().await {
                    Err(error) if error.passing => link.suspect(error),
                    done => done?,
                }
                Ok(true)
            }
            Ok(News::Item(Item::Reset { reason, .. })) => {
                self.talk(&format!(
                    "some of what was written while nobody listened cannot be shown here ({reason}); `everturn sessions messages {}` has all of it",
                    self.order.session
                ));
                Ok(true)
            }
            Ok(News::Item(Item::End)) => {
                Err(CliError::api(Code::SessionDeleted, "the session was deleted meanwhile"))
            }
            Ok(News::Item(Item::Opened)) => {
                self.live = false;
                Ok(false)
            }
            Err(error) if error.passing => {
                let message = format!("lost contact for too long: {}", error.message);
                Err(CliError::new(Fault::LostContact, message).hint(self.safe()))
            }
            Err(error) => Err(error),
        }
    }

    async fn event(&mut self, event: &Event) -> Result<bool> {
        let said = &event.said;
        let mut look = false;
        let ours = match event.name() {
            "run.started" => {
                let ours = said.input_ids.contains(&self.input_id)
                    || said.continues.as_ref().is_some_and(|run| self.runs.contains(run));
                if let (true, Some(run)) = (ours, &said.run_id) {
                    self.runs.insert(run.clone());
                    self.begun();
                    if said.continues.is_some() && !self.order.json {
                        self.talk(render::going_on(said.attempt).as_str());
                    }
                }
                ours
            }
            "input.accepted" => said.input_id.as_ref() == Some(&self.input_id),
            "input.cancelled" => {
                look = true;
                said.input_id.as_ref() == Some(&self.input_id)
            }
            "turn.started" => said.input_ids.contains(&self.input_id),
            "message.added" | "message.updated" => said.message.as_ref().is_some_and(|message| {
                message.input_id.as_ref() == Some(&self.input_id)
                    || message.run_id.as_ref().is_some_and(|run| self.runs.contains(run))
            }),
            _ => said.run_id.as_ref().is_some_and(|run| self.runs.contains(run)),
        };
        if !ours {
            return Ok(look);
        }
        if self.order.json {
            self.screen.line(&event.raw);
        } else {
            self.renderer.event(event, self.screen);
        }
        match event.name() {
            "prompt.opened" => self.prompt.clone_from(&said.prompt),
            "prompt.settled" => {
                let settled = said.prompt.as_ref().map(|prompt| &prompt.id);
                if self.prompt.as_ref().map(|prompt| &prompt.id) == settled {
                    self.prompt = None;
                    self.asked = None;
                }
            }
            _ => {}
        }
        if event.is_terminal() {
            self.prompt = None;
            let outcome = match event.name() {
                "run.completed" => Some("completed"),
                "run.failed" => Some("failed"),
                "run.cancelled" => Some("cancelled"),
                // A continuation may follow.
                _ => None,
            };
            self.seen_end_of = said.run_id.clone().map(|run| (run, outcome));
            look = true;
        }
        if self.live {
            self.settle_prompt().await?;
        }
        Ok(look)
    }

    /// Answers an open prompt, or puts it to the person.
    async fn settle_prompt(&mut self) -> Result<()> {
        let Some(prompt) = self.prompt.clone() else { return Ok(()) };
        if self.asked.as_ref() == Some(&prompt.id) {
            return Ok(());
        }
        self.asked = Some(prompt.id.clone());
        let tool = prompt.call.as_ref().map(|call| call.name.clone());
        let allowed = tool.as_ref().is_some_and(|tool| self.order.allow.contains(tool));
        if prompt.kind == "approval" && allowed {
            return self.send(&prompt, Some("once"), None).await;
        }
        if self.order.person.is_some() {
            let question = render::question(&prompt);
            let question = self.screen.paint().strong(&question);
            self.talk(&format!("? {question}"));
            for line in render::answers(&prompt) {
                self.talk(&line);
            }
            return Ok(());
        }
        let tool = tool.unwrap_or_default();
        if prompt.kind == "approval" {
            self.talk(&format!(
                "{tool} needs approval and nobody can be asked here: denied (--allow {tool} lets it run)"
            ));
            return self.send(&prompt, Some("deny"), Some(render::NOBODY_APPROVES)).await;
        }
        let question = render::question(&prompt);
        self.talk(&format!("the model asks, and nobody can be asked here: {question}"));
        self.send(&prompt, None, Some(render::NOBODY)).await
    }

    /// What the person typed.
    async fn answer(&mut self, line: &str) -> Result<()> {
        let Some(prompt) = self.prompt.clone() else { return Ok(()) };
        if prompt.kind != "approval" && !line.trim().is_empty() {
            return self.send(&prompt, None, Some(render::said(&prompt, line))).await;
        }
        match render::choice(line).filter(|_| prompt.kind == "approval") {
            Some(choice) => self.send(&prompt, Some(choice), None).await,
            None => {
                for line in render::answers(&prompt) {
                    self.talk(&line);
                }
                Ok(())
            }
        }
    }

    async fn send(
        &mut self,
        prompt: &Prompt,
        choice: Option<&str>,
        text: Option<&str>,
    ) -> Result<()> {
        match self.client.answer(prompt, choice, text).await {
            Ok(()) => Ok(()),
            // Somebody else was faster, or time was.
            Err(error)
                if [Code::AlreadyResolved, Code::Expired, Code::StaleGeneration]
                    .into_iter()
                    .any(|code| error.is(code)) =>
            {
                self.talk(&format!("{error}"));
                Ok(())
            }
            Err(error) => {
                // Asked again when contact is back.
                self.asked = None;
                Err(error)
            }
        }
    }

    async fn asked_to(&mut self, ask: Ask) -> Result<()> {
        self.stops += 1;
        if ask == Ask::Terminate || self.stops > 1 {
            let message = match self.client.place() {
                Place::Server(_) => "left; the server goes on with the turn",
                Place::Here => "left before the turn was over",
            };
            let mut error = CliError::new(Fault::LostContact, message).hint(self.safe());
            error.exit = crate::exit::Exit::Interrupted;
            return Err(error);
        }
        self.talk("stopping; once more leaves at once");
        let stopped = if self.started {
            self.client.stop(&self.order.session, None, true).await
        } else {
            match self.client.cancel_input(&self.input_id).await {
                Err(error) if error.is(Code::InputNotQueued) => {
                    self.client.stop(&self.order.session, None, true).await
                }
                done => done,
            }
        };
        match stopped {
            Ok(()) => Ok(()),
            Err(error) if error.is(Code::NotRunning) => Ok(()),
            Err(error) if error.passing => {
                self.stops = 0;
                self.talk(&format!("cannot stop it: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

async fn typed(person: &mut Option<mpsc::UnboundedReceiver<String>>) -> Option<String> {
    match person {
        Some(lines) => lines.recv().await,
        None => std::future::pending().await,
    }
}
