//! The log: to stderr, for operators; what people are told in answer to a command is not log.

use tracing_subscriber::EnvFilter;

use crate::error::{CliError, Fault, Result};
use crate::settings::Settings;
use crate::settings::kinds::LogFormat;

/// What stands alone in a filter.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The first word of a filter that is no level and sets none. The library takes it for the name of a
/// part of the program and logs nothing else, which nobody means who misspells a level.
fn no_level(filter: &str) -> Option<&str> {
    filter.split(',').map(str::trim).find(|word| {
        let level = LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
        !level && !word.contains(['=', '[', ']'])
    })
}

/// Starts logging. `usual` is the level where nobody set one.
pub(crate) fn start(settings: &Settings, usual: &str, colours: bool) -> Result<()> {
    let said = settings.log.value.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(said).map_err(|error| {
        CliError::new(Fault::Config, format!("{}: log is not usable: {error}", settings.log.source))
            .hint("for example warn, info or info,everturn_engine=debug")
    })?;
    if let Some(word) = no_level(said) {
        let message = format!("{}: log: {word:?} is no level", settings.log.source);
        return Err(CliError::new(Fault::Config, message).hint(format!(
            "one of {}, or a filter such as info,everturn_engine=debug",
            LEVELS.join(", ")
        )));
    }
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match settings.log_format.value {
        LogFormat::Text => log.with_ansi(colours).try_init(),
        LogFormat::Json => log.json().with_ansi(false).try_init(),
    };
    // Two logs in one process: nothing that a person could mend.
    if let Err(error) = started {
        return Err(CliError::new(Fault::Io, format!("the log cannot be started: {error}")));
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "something broke inside; this is a bug");
        before(panic);
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::no_level;

    #[test]
    fn a_word_alone_is_a_level() {
        for good in
            ["info", "WARN", "off", "info,everturn_engine=debug", "warn, a[b{c=1,d=2}]=trace"]
        {
            assert_eq!(no_level(good), None, "{good}");
        }
        for (bad, word) in [("foo", "foo"), ("info,everturn_engine", "everturn_engine"), ("", "")] {
            assert_eq!(no_level(bad), Some(word), "{bad}");
        }
    }
}
