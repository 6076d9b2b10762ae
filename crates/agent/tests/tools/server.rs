//! A second process of this binary that plays the server, so that it can be killed, limited and
//! given another environment.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use everturn_agent::tool::ToolOutcome;
use everturn_agent::workspace::Workspace;
use serde_json::json;

use crate::bench::{Bench, block_on};

const RUN: &str = "__run";
const WRITE: &str = "__write";
const WRITE_ONCE: &str = "__write_once";

/// Plays the server if this process was started as one.
pub fn dispatch() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [RUN, command] => block_on(async {
            let bench = Bench::new();
            let mut call = bench.start("shell", json!({"command": command}));
            while let Some(piece) = call.shown.recv().await {
                print!("{piece}");
                std::io::stdout().flush().unwrap();
            }
            let (ToolOutcome::Succeeded(text)
            | ToolOutcome::Failed(text)
            | ToolOutcome::NotRun(text)
            | ToolOutcome::Unknown(text)) = call.task.await.unwrap();
            println!("{text}");
        }),
        // Writes a whole file of one letter, then of the next, and says so each time.
        [WRITE, root] => {
            let workspace = Workspace::open(Path::new(root)).unwrap();
            for letter in (b'a'..=b'z').cycle() {
                let content = vec![letter; 300_000];
                workspace.write("file", &content, None, &|| Ok(())).unwrap();
                println!("{}", char::from(letter));
            }
        }
        [WRITE_ONCE, root] => {
            let workspace = Workspace::open(Path::new(root)).unwrap();
            let content = vec![b'n'; 300_000];
            match workspace.write("file", &content, None, &|| Ok(())) {
                Ok(written) => println!("{written:?}"),
                Err(error) => println!("{}", error.code()),
            }
        }
        _ => return None,
    }
    Some(ExitCode::SUCCESS)
}

pub fn binary() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

/// A server that runs one command and prints its output.
pub struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Lines that came before the one that was waited for.
    passed: Vec<String>,
}

impl Server {
    pub fn start(command: &str) -> Self {
        Self::spawn(Command::new(binary()).args([RUN, command]))
    }

    pub fn start_writing(root: &Path) -> Self {
        Self::spawn(Command::new(binary()).arg(WRITE).arg(root))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, passed: Vec::new() }
    }

    /// Waits for a line that begins so, and gives the rest of it.
    pub fn line(&mut self, beginning: &str) -> String {
        let mut next = 0;
        loop {
            for line in &self.passed[next..] {
                if let Some(rest) = line.strip_prefix(beginning) {
                    return rest.trim().to_owned();
                }
            }
            next = self.passed.len();
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
            self.passed.push(line);
        }
    }

    /// Waits for any further line.
    pub fn line_after(&mut self) {
        assert!(self.output.read_line(&mut String::new()).unwrap() > 0, "it ended");
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The output of a command that a server of its own runs, which is prepared first.
pub fn run_elsewhere(command: &str, prepare: impl FnOnce(&mut Command)) -> String {
    let mut server = Command::new(binary());
    server.args([RUN, command]).stdin(Stdio::null());
    prepare(&mut server);
    String::from_utf8(server.output().unwrap().stdout).unwrap()
}

/// What one write says when no file may be larger than 64 KiB.
pub fn write_with_little_space(root: &Path) -> String {
    let output = Command::new("/bin/bash")
        .args(["-c", r#"trap '' XFSZ; ulimit -f 64; exec "$0" "$@""#])
        .arg(binary())
        .arg(WRITE_ONCE)
        .arg(root)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}
