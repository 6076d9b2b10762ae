//! `everturn chat`, over a pipe and in a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use everturn_sim::server::Home;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{QUICK, SLOW, SLOW_TEXT, json, shell, times_run};

/// Every line is one input; each is answered, in order; approvals are denied.
#[tokio::test]
async fn lines_of_a_pipe_are_inputs() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let line = format!(
        "printf 'one\\n\\nuse the tool\\n//three\\nfour' | \"$EVERTURN\" chat --session s --model '{model}'"
    );
    let ran = shell(&home, &line).run().await.unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines.first(), Some(&"You said one."), "{ran:?}");
    assert_eq!(lines[lines.len() - 2..], ["You said /three.", "You said four."], "{ran:?}");
    assert_eq!(times_run(&home), 0);
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!(shown["generation"], 4);
}

/// A pipe is told how it went by the exit code, and goes on after a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_over_a_pipe_is_the_exit_code() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let _server = home.serve(&model).unwrap().start().await.unwrap();
    let line = "printf 'fail\\nthen\\n' | \"$EVERTURN\" chat";
    let ran = shell(&home, line).run().await.unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), "You said then.\n"), "{ran:?}");
    assert!(ran.stderr.contains("(model_unauthorized)"), "{ran:?}");
}

/// P7: the server is killed under a chat and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_survives_its_server() {
    let home = Home::new().unwrap();
    let model = home.script(SLOW).unwrap();
    let mut server = home.serve(&model).unwrap().start().await.unwrap();
    let line = "printf 'first\\nsecond\\n' | \"$EVERTURN\" chat --session s";
    let run = shell(&home, line).start().unwrap();
    run.out.wait_for_text("three").await.unwrap();
    server.restart().await.unwrap();
    let ran = run.ended().await.unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout, format!("{SLOW_TEXT}{SLOW_TEXT}"), "{ran:?}");
}

/// A process in a terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    all: String,
}

impl Terminal {
    fn start(home: &Home, words: &[&str]) -> Self {
        let host = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&host).unwrap();
        unlockpt(&host).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&host, size).unwrap();
        let name = ptsname(&host, Vec::new()).unwrap().into_string().unwrap();
        let end = File::options().read(true).write(true).open(name).unwrap();
        let side = || Stdio::from(end.try_clone().unwrap());
        let child = Command::new(everturn_sim::process::binary().unwrap())
            .args(words)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .env("EVERTURN_HOME", home.path())
            .current_dir(home.work())
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .unwrap();
        let keys = File::from(host);
        let mut from = keys.try_clone().unwrap();
        let (send, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if send.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, shown, all: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the text is shown, behind everything that was waited for before.
    fn wait_for(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.all.find(text) {
                self.all.drain(..at + text.len());
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.all.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{text:?} is not shown ({error}): {:?}", self.all),
            }
        }
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    fn ended(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The whole of it: streaming, queueing while busy, a tool card, an approval, Ctrl-C, leaving.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_in_a_terminal() {
    let home = Home::new().unwrap();
    const COUNTING: &str = r#"
[[rule]]
contains = "count"
reply = [{ text = "one two three four five six seven eight nine ten", words_per_second = 5 }]
"#;
    let model = home.script(&format!("{COUNTING}{QUICK}")).unwrap();
    let mut chat = Terminal::start(&home, &["chat", "--session", "s", "--model", &model]);
    chat.wait_for("in this process");
    chat.wait_for("> ");
    chat.press("please count\r");
    chat.wait_for("one two ");
    // Typed while the answer streams: it is queued, and the answer goes on.
    chat.press("next\r");
    chat.wait_for("queued, place 1");
    chat.wait_for("ten");
    chat.wait_for("You said next.");
    chat.wait_for("> ");
    chat.press("use the tool\r");
    chat.wait_for("* shell");
    chat.wait_for("? may shell run?");
    chat.wait_for("[y] once");
    chat.press("y\r");
    chat.wait_for("= done");
    chat.wait_for("The tool said: from the shell");
    assert_eq!(times_run(&home), 1);
    chat.press("now hang\r");
    chat.wait_for("So far, ");
    chat.interrupt();
    chat.wait_for("stopping");
    chat.wait_for("stopped by local");
    chat.press("/quit\r");
    chat.wait_for("go on with: everturn chat --session s");
    assert_eq!(chat.ended(), Some(0));
    let shown = json(&home, &["sessions", "show", "s", "--json"]).await;
    assert_eq!((&shown["generation"], &shown["state"]), (&4.into(), &"idle".into()));
}

/// An interrupted turn waits for the person in a chat, and goes on by their word.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_turn_waits_for_the_person() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let words = ["chat", "--session", "s", "--model", &model];
    let mut chat = Terminal::start(&home, &words);
    chat.wait_for("> ");
    chat.press("now hang\r");
    chat.wait_for("So far, ");
    drop(chat);
    let mut chat = Terminal::start(&home, &words);
    chat.wait_for("/continue or /discard");
    chat.press("/continue\r");
    chat.wait_for("You said now hang.");
    chat.press("/quit\r");
    assert_eq!(chat.ended(), Some(0));
}
