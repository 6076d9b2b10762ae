//! What can be typed: arguments and their help. Nothing here does anything.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueHint};
use everturn_core::SessionState;

use crate::client::PAGE;
use crate::settings::Flags;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "everturn",
    version,
    about = "An agent server that never loses a turn",
    long_about = "An agent server that never loses a turn.\n\nEverturn runs conversations with an agent. Every input that it accepts ends in exactly one visible outcome, whatever dies in between: the browser, the network, the process, the machine.",
    after_help = "Examples:\n  everturn serve                      start the server and open the page that it names\n  everturn run 'What is in here?'     one question, answered in the terminal\n  everturn chat                       a conversation in the terminal\n  everturn doctor                     what is wrong, and what to do about it\n\nExit codes: 0 completed, 1 failed, 2 usage, 3 cancelled, 4 interrupted, 5 lost contact, 6 still queued.",
    arg_required_else_help = true,
    disable_help_subcommand = true,
    args_override_self = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Folder that holds everything [default: $EVERTURN_HOME, else $XDG_DATA_HOME/everturn]
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Where")]
    pub(crate) home: Option<PathBuf>,
    /// The store [default: in the home]
    #[arg(long, global = true, value_name = "URL", help_heading = "Where")]
    pub(crate) store: Option<String>,
    /// Settings in TOML [default: config.toml in the home]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Where")]
    pub(crate) config: Option<PathBuf>,
    /// What is logged to stderr: error, warn, info, debug, trace or a filter
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Where")]
    pub(crate) log: Option<String>,
}

impl Common {
    /// As flags over the settings.
    pub(crate) fn flags(&self) -> Flags {
        let mut flags = Flags { config: self.config.clone(), ..Flags::default() };
        flags.set("home", self.home.as_ref().map(|path| path.display().to_string()));
        flags.set("store", self.store.clone());
        flags.set("log", self.log.clone());
        flags
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Serve),
    Run(Run),
    Chat(Chat),
    Attach(Attach),
    /// Read and tidy sessions
    #[command(subcommand)]
    Sessions(Sessions),
    /// Look at turns
    #[command(subcommand)]
    Turn(Turn),
    Doctor(Doctor),
    /// Settings
    #[command(subcommand)]
    Config(Config),
    /// Access tokens
    #[command(subcommand)]
    Token(Token),
    /// Tools that were allowed for ever
    #[command(subcommand)]
    Grant(Grant),
    /// Take in what was recorded elsewhere
    #[command(subcommand)]
    Import(Import),
    Torture(Torture),
}

/// Swallows whatever belongs to a command that does not exist yet.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct NotBuilt {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub(crate) rest: Vec<String>,
}

/// Which model answers and where its tools work.
#[derive(Debug, Clone, Args)]
pub(crate) struct Agent {
    /// Model that answers, such as openai/gpt-5.4-mini, ollama/qwen3 or script/demo
    #[arg(long, value_name = "PROVIDER/NAME")]
    pub(crate) model: Option<String>,
    /// Folder that tools work in
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) workspace: Option<PathBuf>,
}

impl Agent {
    /// As flags over the settings.
    pub(crate) fn over(&self, flags: &mut Flags) {
        flags.set("model", self.model.clone());
        flags.set("workspace", self.workspace.as_ref().map(|path| path.display().to_string()));
    }
}

/// `serve`
#[derive(Debug, Args)]
#[command(
    about = "Run the server",
    long_about = "Run the server.\n\nPrints `listening on http://HOST:PORT` on stdout once it is ready; everything else goes to stderr. What a server before it left unfinished is resolved, and continued where the session's policy says so. SIGTERM or Ctrl-C: turns end, or are handed over at their next step; reads are answered meanwhile. A second signal ends the process at once; nothing that was accepted is lost.",
    after_help = "Examples:\n  everturn serve\n  everturn serve --listen 127.0.0.1:0 --model ollama/qwen3\n  everturn serve --home /srv/everturn --workspace /srv/project"
)]
pub(crate) struct Serve {
    /// Address to listen on; port 0 picks one [default: 127.0.0.1:8787]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) agent: Agent,
}

/// How a command behaves when the server goes away.
#[derive(Debug, Clone, Args)]
pub(crate) struct Patience {
    /// Seconds to try to reach the server again [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) reconnect: Option<u64>,
}

impl Patience {
    /// As flags over the settings.
    pub(crate) fn over(&self, flags: &mut Flags) {
        flags.set("reconnect_s", self.reconnect.map(|seconds| seconds.to_string()));
    }
}

/// `run`
#[derive(Debug, Args)]
#[command(
    about = "Ask one thing and stream the answer",
    long_about = "Ask one thing and stream the answer to stdout.\n\nUses a running server of the same home, else runs the turn in this process. The input is durable before the model is asked: if this command dies, the same command with the same --request-id goes on where it was. Tools that need approval ask in the terminal; without one they are denied, unless --allow opens them.",
    after_help = "Examples:\n  everturn run 'What is in here?'\n  git diff | everturn run --session review -\n  everturn run --allow shell --session nightly --request-id nightly-1 'Run the tests'\n\nExit codes: 0 completed, 1 failed, 2 usage, 3 cancelled, 4 interrupted, 5 lost contact for longer than --reconnect (the input is safe), 6 still queued after --wait (the input is safe)."
)]
pub(crate) struct Run {
    /// What to say; `-` reads it from stdin
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) text: String,
    /// Conversation to go on with [default: a new one]
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Your name for this input: the same one again is the same input
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// Write events as JSON lines instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Let a tool run without asking; may be repeated
    #[arg(long, value_name = "TOOL")]
    pub(crate) allow: Vec<String>,
    #[command(flatten)]
    pub(crate) agent: Agent,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Seconds to wait for the turn to begin [default: 1800]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
}

/// `chat`
#[derive(Debug, Args)]
#[command(
    about = "Hold a conversation in the terminal",
    long_about = "Hold a conversation in the terminal.\n\nUses a running server of the same home, else runs the turns in this process. What you type while a turn runs is queued. Ctrl-C stops the turn, a second one leaves; Ctrl-D leaves when nothing runs. `/help` lists what else can be typed. With stdin not a terminal every line is one input, and approvals are denied unless --allow opens them.",
    after_help = "Examples:\n  everturn chat\n  everturn chat --session review\n  printf 'Hello\\nAnd again\\n' | everturn chat"
)]
pub(crate) struct Chat {
    /// Conversation to go on with [default: a new one]
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Let a tool run without asking; may be repeated
    #[arg(long, value_name = "TOOL")]
    pub(crate) allow: Vec<String>,
    #[command(flatten)]
    pub(crate) agent: Agent,
    #[command(flatten)]
    pub(crate) patience: Patience,
}

/// `attach`
#[derive(Debug, Args)]
#[command(
    about = "Follow a session as it happens",
    long_about = "Follow a session as it happens, until Ctrl-C or until the session is deleted. Without --after it begins with what happens now.",
    after_help = "Examples:\n  everturn attach review\n  everturn attach review --after 0 --json"
)]
pub(crate) struct Attach {
    /// The session
    #[arg(value_name = "SESSION")]
    pub(crate) session: String,
    /// Feed position to go on from; 0 is everything
    #[arg(long, value_name = "OFFSET")]
    pub(crate) after: Option<u64>,
    /// Write events as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) patience: Patience,
}

/// `sessions …`
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  everturn sessions list --state interrupted\n  everturn sessions messages review --last 20\n  everturn sessions export review > review.jsonl"
)]
pub(crate) enum Sessions {
    /// List sessions, newest change first
    List {
        /// Only in this state
        #[arg(long, value_parser = PossibleValuesParser::new(SessionState::ALL.iter().map(|state| state.as_str())))]
        state: Option<String>,
        /// Only with this text in the title or a message
        #[arg(long = "search", value_name = "TEXT")]
        query: Option<String>,
        /// At most this many, from 1 to 500
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE)))]
        limit: u32,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one session
    Show {
        /// The session
        #[arg(value_name = "SESSION")]
        id: String,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a session's messages
    Messages {
        /// The session
        #[arg(value_name = "SESSION")]
        id: String,
        /// Only the last ones
        #[arg(long, value_name = "N")]
        last: Option<u32>,
        /// Only those after this message
        #[arg(long, value_name = "MESSAGE", conflicts_with = "last")]
        after: Option<u64>,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a session as JSON lines
    #[command(
        long_about = "Write a session as JSON lines: its messages in order, or with --events every event of its feed, byte for byte as clients were sent it."
    )]
    Export {
        /// The session
        #[arg(value_name = "SESSION")]
        id: String,
        /// Events instead of messages
        #[arg(long)]
        events: bool,
        /// With --events: only those after this feed position
        #[arg(long, value_name = "OFFSET", requires = "events", default_value_t = 0)]
        after: u64,
        /// JSON lines are the only form; accepted so that `--json` works everywhere
        #[arg(long, hide = true)]
        json: bool,
    },
    /// Close a session; a person's next input opens it again
    End {
        /// The session
        #[arg(value_name = "SESSION")]
        id: String,
        /// Why
        #[arg(long, default_value = "closed")]
        reason: String,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a session for good
    Delete {
        /// The session
        #[arg(value_name = "SESSION")]
        id: String,
        /// Stop a running turn first
        #[arg(long)]
        force: bool,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
}

/// `turn …`
#[derive(Debug, Subcommand)]
pub(crate) enum Turn {
    /// The flight record of a turn: what happened, when, why it ended
    #[command(
        after_help = "Examples:\n  everturn turn show run_0199f3…\n  everturn turn show inp_0199f3…\n  everturn turn show review:7"
    )]
    Show {
        /// A run, an input, or SESSION:GENERATION
        #[arg(value_name = "ID")]
        id: String,
        /// Every event, pieces of text and of output included
        #[arg(long)]
        all: bool,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a run's journal as JSON lines
    #[command(
        long_about = "Write a run's journal as JSON lines, in the format of the earlier web UI's run journals: one record for each event, with the same number. `everturn import journal` reads it.",
        after_help = "Examples:\n  everturn turn export run_0199f3… --output run.jsonl\n  everturn turn export review:7 | jq .event"
    )]
    Export {
        /// A run, an input with one run, or SESSION:GENERATION
        #[arg(value_name = "ID")]
        id: String,
        /// Write it there instead of to stdout; the file is there when it is complete
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
        /// Replace the file if it is there already
        #[arg(long, requires = "output")]
        force: bool,
    },
}

/// `import …`
#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// Take in one run that is kept as JSON lines
    #[command(
        long_about = "Take in one run that is kept as JSON lines: a run journal of the earlier web UI, or what `everturn turn export` wrote.\n\nIt becomes a run of its own in the session, whole or not at all, and once: the same journal again changes nothing. It is readable like any other run and never goes on. What is damaged in the file is told of and does no harm to the rest.",
        after_help = "Examples:\n  everturn import journal run.jsonl --dry-run\n  everturn import journal run.jsonl --session archive"
    )]
    Journal {
        /// The journal
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Session to take it in [default: the one that the journal names]
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Read it and say what it is; change nothing
        #[arg(long)]
        dry_run: bool,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Not built yet.
    #[command(hide = true)]
    Hermes(NotBuilt),
}

/// `doctor`
#[derive(Debug, Args)]
#[command(
    about = "Check the home, the store, the model and the limits",
    long_about = "Check the home, the store, the model and the limits, and say what to do. Exit code 1 if anything is a problem. Changes nothing, and may be run beside a server.",
    after_help = "Examples:\n  everturn doctor\n  everturn doctor --json\n  everturn doctor --offline"
)]
pub(crate) struct Doctor {
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not ask the model's provider anything
    #[arg(long)]
    pub(crate) offline: bool,
    #[command(flatten)]
    pub(crate) agent: Agent,
}

/// `torture`
#[derive(Debug, Args)]
#[command(
    about = "Kill real servers again and again and check that nothing is lost",
    long_about = "Kill real servers again and again and check that nothing is lost.\n\nStarts servers with a scripted model in temporary homes of their own, lets clients send inputs, stream, approve and stop, and has the server die: at each of the places that docs/torture.md lists, by kill -9 at random moments, by SIGTERM, paused for longer than its lease. Then everything is read and compared with what the clients saw. Touches no other home and no network but loopback. Exit code 1 if any promise was broken, with the seed.",
    after_help = "Examples:\n  everturn torture\n  everturn torture --points claim,settle --fsync eager\n  everturn torture --points kill --seconds 600\n  everturn torture --seed 7 --points kill --keep"
)]
pub(crate) struct Torture {
    /// What random moments follow from; a failure names it [default: a new one]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How often everything is done [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cycles: Option<u32>,
    /// Instead of --cycles: go on for so long, and at least once through everything
    #[arg(long, value_name = "N", conflicts_with = "cycles")]
    pub(crate) seconds: Option<u64>,
    /// Only these places and ways to die, separated by commas, such as claim, settle.committed or kill
    #[arg(long, value_name = "LIST")]
    pub(crate) points: Option<String>,
    /// Only this mode of journal.fsync: terminal-only or eager [default: both]
    #[arg(long, value_name = "MODE")]
    pub(crate) fsync: Option<String>,
    /// Leave the homes behind in which a promise was broken
    #[arg(long)]
    pub(crate) keep: bool,
    /// Break this promise (P1 to P9) on purpose in every home, to see that it is found; goes with
    /// --points and a place in the middle of a command, such as call.started
    #[arg(long, value_name = "PROMISE")]
    pub(crate) plant: Option<String>,
}

/// `config …`
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Show every setting and where it came from
    Show {
        /// Write JSON
        #[arg(long)]
        json: bool,
        /// Only those that somebody set
        #[arg(long)]
        set: bool,
    },
}

/// `token …`
#[derive(Debug, Subcommand)]
#[command(
    after_help = "From the first token on, every request needs one. The command line of the same home goes on working: it proves itself with a key file that only its user can read.\n\nExamples:\n  everturn token create --principal ann\n  everturn token create --principal ci --scope read,submit --expires 90d\n  everturn token revoke tok_0199f3…"
)]
pub(crate) enum Token {
    /// Make a token; prints it alone on stdout, once
    Create {
        /// Who it speaks for: sessions belong to their principal
        #[arg(long, value_name = "NAME")]
        principal: String,
        /// What it may do, separated by commas: read, submit, control, approve, admin
        #[arg(long, value_name = "LIST", default_value = "read,submit,control,approve")]
        scope: String,
        /// When it runs out, such as 12h, 90d or 2027-01-31 [default: never]
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
    },
    /// List tokens, without their secrets
    List {
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token
    Revoke {
        /// Its id, as `list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// `grant …`
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Whoever answers an approval with `always` allows that tool in all of their sessions. Here that can be seen and taken back.\n\nExamples:\n  everturn grant list\n  everturn grant revoke shell"
)]
pub(crate) enum Grant {
    /// List the tools that were allowed for ever
    List {
        /// By whom
        #[arg(long, value_name = "NAME", default_value = "local")]
        principal: String,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Let a tool ask again
    Revoke {
        /// The tool's name, as `list` shows it
        #[arg(value_name = "TOOL")]
        tool: String,
        /// Who had allowed it
        #[arg(long, value_name = "NAME", default_value = "local")]
        principal: String,
    },
}
