//! The types that settings have, and how each is read from text.
//!
//! Flags, variables and the file all give text, so that there is one place where a value is checked,
//! whatever it came from. The file keeps one rule more: what is a number must be written as one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How a value must be written in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// In quotes.
    Text,
    /// A whole number.
    Number,
    /// A list of texts.
    List,
}

/// A type that a setting can have.
pub(crate) trait Kind: Sized {
    /// How it is written in the file.
    const FORM: Form;
    /// What is expected, in words.
    fn expects() -> String;
    /// Reads it.
    fn read(text: &str) -> Option<Self>;
    /// Writes it, as `config show` does.
    fn show(&self) -> String;
    /// What holds when nobody said anything and there is no default; `None` where there must be one.
    fn absent() -> Option<Self> {
        None
    }
}

impl Kind for String {
    const FORM: Form = Form::Text;
    fn expects() -> String {
        "a text".to_owned()
    }
    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Kind for PathBuf {
    const FORM: Form = Form::Text;
    fn expects() -> String {
        "a path".to_owned()
    }
    fn read(text: &str) -> Option<Self> {
        Some(Self::from(text))
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Kind for SocketAddr {
    const FORM: Form = Form::Text;
    fn expects() -> String {
        "an address and a port, such as 127.0.0.1:8787".to_owned()
    }
    fn read(text: &str) -> Option<Self> {
        // The one name that everybody writes; other names would have to be looked up.
        match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}").parse().ok(),
            None => text.parse().ok(),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl<T: Kind> Kind for Option<T> {
    const FORM: Form = T::FORM;
    fn expects() -> String {
        T::expects()
    }
    fn read(text: &str) -> Option<Self> {
        T::read(text).map(Some)
    }
    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// A whole number within limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Kind for Count<MIN, MAX> {
    const FORM: Form = Form::Number;
    fn expects() -> String {
        format!("a number from {MIN} to {MAX}")
    }
    fn read(text: &str) -> Option<Self> {
        // Numbers in TOML may be grouped; the other sources keep the same habit.
        let number = text.replace('_', "").parse().ok()?;
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl<const MIN: u64, const MAX: u64> Count<MIN, MAX> {
    /// As a count of things in memory.
    pub(crate) fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// As a small count.
    pub(crate) fn as_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// As seconds.
    pub(crate) const fn seconds(self) -> Duration {
        Duration::from_secs(self.0)
    }

    /// As milliseconds.
    pub(crate) const fn millis(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// Names, separated by commas outside the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl Kind for Names {
    const FORM: Form = Form::List;
    fn expects() -> String {
        "a list of names".to_owned()
    }
    fn read(text: &str) -> Option<Self> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Some(Self(names.map(str::to_owned).collect()))
    }
    fn show(&self) -> String {
        self.0.join(",")
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$vdoc])* $variant,)* }
        impl Kind for $name {
            const FORM: Form = Form::Text;
            fn expects() -> String { [$($word),*].join(" or ") }
            fn read(text: &str) -> Option<Self> {
                match text { $($word => Some(Self::$variant),)* _ => None }
            }
            fn show(&self) -> String {
                match self { $(Self::$variant => $word,)* }.to_owned()
            }
        }
    };
}

words! {
    /// Which commits wait for the disk.
    Fsync {
        /// All but those of token deltas.
        TerminalOnly = "terminal-only",
        /// All.
        Eager = "eager",
    }
}

words! {
    /// Whether something happens by itself.
    Switch {
        /// It does.
        On = "on",
        /// It does not.
        Off = "off",
    }
}

words! {
    /// When an interrupted turn goes on by itself.
    Moment {
        /// As soon as its interruption is recorded.
        OnStart = "on_start",
        /// When a viewer is there.
        OnView = "on_view",
    }
}

words! {
    /// How the log is written.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_numbers_or_localhost() {
        let read = <SocketAddr as Kind>::read;
        assert_eq!(read("127.0.0.1:0").unwrap().port(), 0);
        assert_eq!(read("localhost:8080").unwrap().to_string(), "127.0.0.1:8080");
        assert_eq!(read("[::1]:80").unwrap().port(), 80);
        for bad in ["", "8787", "127.0.0.1", "example.org:80", "127.0.0.1:99999"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn counts_keep_to_their_limits() {
        type Few = Count<1, 10>;
        assert_eq!(Few::read("10"), Some(Count(10)));
        for bad in ["0", "11", "-1", "1.5", "ten", "", "99999999999999999999999"] {
            assert_eq!(Few::read(bad), None, "{bad}");
        }
        assert_eq!(Count::<0, 9_999>::read("1_000"), Some(Count(1_000)));
    }

    #[test]
    fn names_are_separated_by_commas() {
        assert_eq!(Names::read(" A, B ,,").unwrap().0, ["A", "B"]);
        assert!(Names::read("").unwrap().0.is_empty());
    }
}
