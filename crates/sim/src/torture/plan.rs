//! What is to happen: which deaths, in which modes, how often.

use std::path::PathBuf;
use std::time::Duration;

use everturn_crash::Point;

use super::plant::Plant;

/// A way for a server to die, or to wish that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Death {
    /// It aborts at a named place. Where that is passed once for each record of a transaction, one
    /// home after the other dies a record later, until one has none left.
    Point(Point),
    /// `kill -9` at moments that nobody chose, under load.
    Kill,
    /// SIGTERM at such moments: it leaves as it should.
    Terminate,
    /// SIGSTOP for longer than its lease while another server of the home goes on; then SIGCONT.
    Pause,
}

impl Death {
    /// All of them, the named places first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let points = Point::ALL.iter().map(|point| Self::Point(*point));
        points.chain([Self::Kill, Self::Terminate, Self::Pause]).collect()
    }

    /// Its name on the command line and in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Point(point) => point.name(),
            Self::Kill => "kill",
            Self::Terminate => "terminate",
            Self::Pause => "pause",
        }
    }

    /// Whether it happens once for each record.
    #[must_use]
    pub fn is_by_record(self) -> bool {
        matches!(self, Self::Point(point) if point.name().ends_with(".record"))
    }

    /// Those that a list names: each word a name, or the beginning of some (`claim` is all of
    /// `claim.*`).
    ///
    /// # Errors
    /// The word that names nothing.
    pub fn named(list: &str) -> Result<Vec<Self>, String> {
        let mut found = Vec::new();
        for word in list.split(',').map(str::trim) {
            let group = format!("{word}.");
            let named: Vec<Self> = Self::all()
                .into_iter()
                .filter(|death| death.name() == word || death.name().starts_with(&group))
                .collect();
            if named.is_empty() {
                return Err(word.to_owned());
            }
            found.extend(
                named.into_iter().filter(|death| !found.contains(death)).collect::<Vec<_>>(),
            );
        }
        Ok(found)
    }
}

/// What is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fsync {
    /// Everything but pieces of text.
    TerminalOnly,
    /// Those, too.
    Eager,
}

impl Fsync {
    /// Both.
    pub const ALL: [Self; 2] = [Self::TerminalOnly, Self::Eager];

    /// Its name in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TerminalOnly => "terminal-only",
            Self::Eager => "eager",
        }
    }

    /// The mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The binary whose servers die.
    pub program: PathBuf,
    /// What the random moments follow from.
    pub seed: u64,
    /// How often everything is done.
    pub cycles: u32,
    /// Instead of a count: no cycle begins after this.
    pub seconds: Option<Duration>,
    /// The deaths.
    pub deaths: Vec<Death>,
    /// The modes.
    pub modes: Vec<Fsync>,
    /// Homes in which something went wrong are left behind.
    pub keep: bool,
    /// Homes at the same time.
    pub at_once: usize,
    /// Damage that is done to every home before it is looked at.
    pub plant: Option<Plant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_deaths_and_groups_of_them() {
        let names = |list: &str| -> Vec<&str> {
            Death::named(list).unwrap().into_iter().map(Death::name).collect()
        };
        assert_eq!(names("kill"), ["kill"]);
        assert_eq!(
            names("stop, kill,stop.applied"),
            ["stop.applied", "stop.committed", "stop.published", "kill"]
        );
        assert_eq!(names("approval.opened").len(), 3);
        assert_eq!(Death::named("claim,clam"), Err("clam".to_owned()));
        assert_eq!(Death::named(""), Err(String::new()));
    }
}
