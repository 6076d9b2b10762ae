//! The log: to stderr, for operators; what people are told in answer to a command is not log.

use tracing_subscriber::EnvFilter;

use crate::error::{CliError, Fault, Result};
use crate::settings::Settings;
use crate::settings::kinds::LogFormat;

/// Starts logging. `usual` is the level where nobody set one.
pub(crate) fn start(settings: &Settings, usual: &str, colours: bool) -> Result<()> {
    let said = settings.log.value.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(said).map_err(|error| {
        CliError::new(Fault::Config, format!("{}: log is not usable: {error}", settings.log.source))
            .hint("for example warn, info or info,everturn_engine=debug")
    })?;
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
