//! Which model answers: from a name like `openai/gpt-5.4-mini`, or from what the environment offers.
//!
//! docs/models.md is the list for people.

mod partial;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everturn_core::Failure;
use genai::adapter::AdapterKind;

use crate::provider::{Hosted, HostedSetup, Provider, RequestTimeouts, Secret, list_models};
use crate::script::{self, ScriptError, ScriptedProvider};
pub use partial::ContinuePartial;

/// How long a server is asked which models it has.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// How long a local Ollama may take to show that it is there.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// Where Ollama listens by default.
const OLLAMA_DEFAULT: &str = "http://127.0.0.1:11434/";

/// Settings that hold for every hosted model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Limits of silence.
    pub timeouts: RequestTimeouts,
    /// Tokens that fit one request; without it a history that is too long is the provider's to
    /// refuse.
    pub context_tokens: Option<u64>,
    /// Which models go on writing a message of theirs that broke off.
    pub continue_partial: ContinuePartial,
}

/// A model, ready to be asked.
#[derive(Clone)]
pub struct Resolved {
    /// The model.
    pub provider: Arc<dyn Provider>,
    /// One sentence for the person who started the program, when the choice was not theirs.
    pub notice: Option<String>,
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved")
            .field("model", &self.provider.model())
            .field("notice", &self.notice)
            .finish()
    }
}

/// Why no model could be made ready. No variant holds a key, nor an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The name is not `provider/name`.
    #[error("{spec:?} does not name a model as PROVIDER/NAME")]
    Name {
        /// As it was given.
        spec: String,
        /// What was probably meant.
        guess: Option<String>,
    },
    /// Nobody knows this provider.
    #[error("unknown model provider {provider:?}")]
    UnknownProvider {
        /// As it was given.
        provider: String,
    },
    /// The provider needs something from the environment that is not there.
    #[error("{provider} needs {variable} in the environment")]
    MissingKey {
        /// The provider.
        provider: String,
        /// The variable.
        variable: String,
    },
    /// An address from the environment is none.
    #[error("{variable} is not usable: {reason}")]
    Address {
        /// The variable.
        variable: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No model is named, and the provider does not tell which it has.
    #[error("cannot choose a model of {provider}: {reason}")]
    Unlisted {
        /// The provider.
        provider: String,
        /// What went wrong.
        reason: String,
    },
    /// The script cannot be used.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The HTTP client cannot be made.
    #[error("cannot set {provider} up: {reason}")]
    Client {
        /// The provider.
        provider: String,
        /// What went wrong.
        reason: String,
    },
}

impl ModelError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Name { .. } => "model_name_invalid",
            Self::UnknownProvider { .. } => "model_provider_unknown",
            Self::MissingKey { .. } => "model_key_missing",
            Self::Address { .. } => "model_address_invalid",
            Self::Unlisted { .. } => "model_list_unavailable",
            Self::Script(error) => error.code(),
            Self::Client { .. } => "model_client_failed",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Name { guess: Some(guess), .. } => format!("did you mean {guess}?"),
            Self::Name { guess: None, .. } => {
                "for example openai/gpt-5.4-mini, ollama/qwen3 or script/demo".to_owned()
            }
            Self::UnknownProvider { .. } => {
                format!(
                    "known are {}; any OpenAI-compatible server is openai/NAME with OPENAI_BASE_URL",
                    known().join(", ")
                )
            }
            Self::MissingKey { variable, .. } => {
                format!("set {variable}, or choose another model with --model PROVIDER/NAME")
            }
            Self::Address { .. } => {
                "it is the base of the API, for example http://127.0.0.1:8080/v1".to_owned()
            }
            Self::Unlisted { provider, .. } => {
                format!("name the model with --model {provider}/NAME or EVERTURN_MODEL")
            }
            Self::Script(error) => error.hint().to_owned(),
            Self::Client { .. } => {
                "providers behind https need the certificates of this machine's \
                                    system (mostly a package `ca-certificates`), or SSL_CERT_FILE"
                    .to_owned()
            }
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self {
            code: error.code().to_owned(),
            message: error.to_string(),
            // A server that did not list its models may do so in a moment.
            permanent: !matches!(error, ModelError::Unlisted { .. }),
            hint: Some(error.hint()),
        }
    }
}

/// Reads one variable of the environment.
pub type Env<'a> = dyn Fn(&str) -> Option<String> + Sync + 'a;

/// Finds the model for a name, with default settings; see [`resolve_with`].
///
/// # Errors
/// See [`ModelError`].
pub async fn resolve(spec: Option<&str>, env: &Env<'_>) -> Result<Resolved, ModelError> {
    resolve_with(spec, env, &ModelOptions::default()).await
}

/// Finds the model for a name: `PROVIDER/NAME`, `script/PATH` or `script/demo`.
///
/// Without a name it is `EVERTURN_MODEL`; else a model of the first provider that the environment
/// is set up for; else of a local Ollama that answers; else the built-in demo. Only without a name
/// is anything asked over the network, and never for longer than a few seconds.
///
/// # Errors
/// See [`ModelError`]. That a key is refused or a model does not exist shows with the first request.
pub async fn resolve_with(
    spec: Option<&str>,
    env: &Env<'_>,
    options: &ModelOptions,
) -> Result<Resolved, ModelError> {
    let set = |name: &str| env(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
    let spec = spec.map(str::trim).filter(|spec| !spec.is_empty()).map(str::to_owned);
    match spec.or_else(|| set("EVERTURN_MODEL")) {
        Some(spec) => {
            named(&spec, &set, options).map(|provider| Resolved { provider, notice: None })
        }
        None => unnamed(&set, options).await,
    }
}

/// Reads a variable; empty ones count as absent.
type Set<'a> = dyn Fn(&str) -> Option<String> + Sync + 'a;

fn named(
    spec: &str,
    set: &Set<'_>,
    options: &ModelOptions,
) -> Result<Arc<dyn Provider>, ModelError> {
    let Some((provider, name)) = spec.split_once('/').filter(|(_, name)| !name.trim().is_empty())
    else {
        return Err(ModelError::Name { spec: spec.to_owned(), guess: guess(spec) });
    };
    if provider.eq_ignore_ascii_case("script") {
        return Ok(match name {
            "demo" => Arc::new(script::demo()?),
            path => Arc::new(ScriptedProvider::read(Path::new(path))?),
        });
    }
    let kind = kind_of(provider)
        .ok_or_else(|| ModelError::UnknownProvider { provider: provider.to_owned() })?;
    hosted(set_up(kind, name, set, options)?, options)
}

fn hosted(mut setup: HostedSetup, options: &ModelOptions) -> Result<Arc<dyn Provider>, ModelError> {
    setup.continues_partial = options.continue_partial.holds(setup.kind, &setup.name);
    let provider = provider_name(setup.kind);
    match Hosted::new(setup) {
        Ok(hosted) => Ok(Arc::new(hosted)),
        Err(reason) => Err(ModelError::Client { provider, reason }),
    }
}

async fn unnamed(set: &Set<'_>, options: &ModelOptions) -> Result<Resolved, ModelError> {
    for kind in by_preference() {
        let Some(reason) = reason_to_choose(kind, set) else { continue };
        let mut setup = set_up(kind, "", set, options)?;
        let provider = provider_name(kind);
        // A server of one's own has models of its own.
        let name = match usual_model(kind) {
            Some(name) if setup.base.is_none() => name.to_owned(),
            _ => {
                let unlisted =
                    |reason: String| ModelError::Unlisted { provider: provider.clone(), reason };
                let names = list_models(&setup, LIST_PATIENCE)
                    .await
                    .map_err(|error| unlisted(error.message))?;
                first_for_chat(names)
                    .ok_or_else(|| unlisted("it lists no model for conversations".to_owned()))?
            }
        };
        let notice = format!(
            "answering with {provider}/{name}, because {reason} is set; choose another model with \
             --model PROVIDER/NAME"
        );
        setup.model = format!("{provider}/{name}");
        setup.name = name;
        return Ok(Resolved { provider: hosted(setup, options)?, notice: Some(notice) });
    }

    let mut setup = set_up(AdapterKind::Ollama, "", set, options)?;
    let mut ollama_is_empty = "";
    if let Ok(names) = list_models(&setup, PROBE_PATIENCE).await {
        if let Some(name) = first_for_chat(names) {
            setup.model = format!("ollama/{name}");
            let notice = format!(
                "answering with {}, because Ollama runs here; choose another model with --model \
                 PROVIDER/NAME",
                setup.model
            );
            setup.name = name;
            return Ok(Resolved { provider: hosted(setup, options)?, notice: Some(notice) });
        }
        ollama_is_empty = " (Ollama runs here, but has no model: `ollama pull` one)";
    }
    Ok(Resolved {
        provider: Arc::new(script::demo()?),
        notice: Some(format!(
            "no model is set up, so the built-in demo script answers{ollama_is_empty}; set \
             OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, or use --model PROVIDER/NAME"
        )),
    })
}

/// All settings of a hosted provider, from the environment.
fn set_up(
    kind: AdapterKind,
    name: &str,
    set: &Set<'_>,
    options: &ModelOptions,
) -> Result<HostedSetup, ModelError> {
    let provider = provider_name(kind);
    let base = base_of(kind, set)?;
    let key = key_variables(kind).iter().find_map(|variable| set(variable));
    let missing = |variable: &str| ModelError::MissingKey {
        provider: provider.clone(),
        variable: variable.to_owned(),
    };
    if let (None, None, Some(variable)) = (&key, &base, key_variables(kind).first()) {
        // Servers of one's own often have no key; the provider's own always does.
        if kind != AdapterKind::Omlx {
            return Err(missing(variable));
        }
    }
    if kind == AdapterKind::Vertex && set("VERTEX_PROJECT_ID").is_none() {
        return Err(missing("VERTEX_PROJECT_ID"));
    }
    Ok(HostedSetup {
        model: format!("{provider}/{name}"),
        kind,
        name: name.to_owned(),
        key: key.map(Secret::new),
        base,
        timeouts: options.timeouts,
        context_tokens: options.context_tokens,
        continues_partial: false,
    })
}

/// The library's spelling of a provider's name, and a few that people use.
fn kind_of(provider: &str) -> Option<AdapterKind> {
    let name = provider.trim().to_lowercase().replace('-', "_");
    let name = match name.as_str() {
        "openrouter" => "open_router",
        "google" => "gemini",
        "grok" => "xai",
        name => name,
    };
    AdapterKind::all().iter().copied().find(|kind| kind.as_lower_str() == name)
}

fn provider_name(kind: AdapterKind) -> String {
    kind.as_lower_str().to_owned()
}

/// Every provider's name, sorted, `script` included.
#[must_use]
pub fn known() -> Vec<&'static str> {
    let mut names: Vec<_> = AdapterKind::all().iter().map(AdapterKind::as_lower_str).collect();
    names.push("script");
    names.sort_unstable();
    names
}

/// What a name without a provider probably means.
fn guess(spec: &str) -> Option<String> {
    let name = spec.trim().trim_end_matches('/');
    let kind = AdapterKind::from_model(name).ok()?;
    // Ollama is what the library says when it does not know.
    (kind != AdapterKind::Ollama && !name.is_empty() && kind_of(name).is_none()).then(|| {
        let kind = if kind == AdapterKind::OpenAIResp { AdapterKind::OpenAI } else { kind };
        format!("{}/{name}", provider_name(kind))
    })
}

/// Providers in the order in which one is chosen.
fn by_preference() -> impl Iterator<Item = AdapterKind> {
    use AdapterKind as K;
    const FIRST: [K; 3] = [K::OpenAI, K::Anthropic, K::Gemini];
    // A GitHub token is mostly there for something else; Vertex and Bedrock need more than a key;
    // two are second doors to a provider that is already in the list.
    const NEVER: [K; 7] = [
        K::GithubCopilot,
        K::Vertex,
        K::BedrockApi,
        K::OpenAIResp,
        K::GeminiIx,
        K::Ollama,
        K::Omlx,
    ];
    let rest =
        K::all().iter().copied().filter(|kind| !FIRST.contains(kind) && !NEVER.contains(kind));
    FIRST.into_iter().chain(rest)
}

/// The variable that makes a provider the one to choose.
fn reason_to_choose(kind: AdapterKind, set: &Set<'_>) -> Option<String> {
    let key = key_variables(kind).into_iter().find(|variable| set(variable).is_some());
    // Whoever names a compatible server wants it, key or not.
    let base = base_variable(kind).filter(|v| kind == AdapterKind::OpenAI && set(v).is_some());
    base.or(key)
}

/// Where a provider's key may stand, the usual place first.
fn key_variables(kind: AdapterKind) -> Vec<String> {
    let mut names: Vec<String> =
        kind.default_key_env_name().map(str::to_owned).into_iter().collect();
    match kind {
        AdapterKind::Gemini => names.push("GOOGLE_API_KEY".to_owned()),
        AdapterKind::OpenRouter => names.push("OPENROUTER_API_KEY".to_owned()),
        AdapterKind::BedrockApi => names.push("AWS_BEARER_TOKEN_BEDROCK".to_owned()),
        _ => {}
    }
    names
}

/// Where another base address of a provider may stand: beside its key, as `…_BASE_URL`.
fn base_variable(kind: AdapterKind) -> Option<String> {
    if kind == AdapterKind::Ollama {
        return Some("OLLAMA_HOST".to_owned());
    }
    let key = kind.default_key_env_name()?;
    key.strip_suffix("_API_KEY").map(|name| format!("{name}_BASE_URL"))
}

/// The base address in the library's form: with the API's version, with a final slash.
fn base_of(kind: AdapterKind, set: &Set<'_>) -> Result<Option<String>, ModelError> {
    let Some(variable) = base_variable(kind) else { return Ok(None) };
    let Some(given) = set(&variable) else {
        return Ok((kind == AdapterKind::Ollama).then(|| OLLAMA_DEFAULT.to_owned()));
    };
    let wrong = |reason: &str| ModelError::Address {
        variable: variable.clone(),
        reason: reason.to_owned(),
    };
    let given = if kind == AdapterKind::Ollama { ollama_address(&given) } else { given };
    let mut url = reqwest::Url::parse(&given).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it does not begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("it holds a user name or a password"));
    }
    let mut path = url.path().trim_end_matches('/').to_owned();
    // Anthropic's own clients take the address without the version, OpenAI's with it.
    if kind == AdapterKind::Anthropic && !path.ends_with("/v1") {
        path.push_str("/v1");
    }
    url.set_path(&format!("{path}/"));
    url.set_fragment(None);
    Ok(Some(url.into()))
}

/// `OLLAMA_HOST` as Ollama itself reads it: scheme and port may be missing, and an address to listen
/// on is one to connect to on this machine.
fn ollama_address(given: &str) -> String {
    let (scheme, rest) = given.split_once("://").unwrap_or(("http", given));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let bare_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    let host = if bare_v6 { format!("[{host}]") } else { host.to_owned() };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host.as_str(), None),
    };
    let name = match name {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        name => name,
    };
    let port = match port {
        Some(port) => format!(":{port}"),
        // With a scheme the port is the scheme's own.
        None if given.contains("://") => String::new(),
        None => ":11434".to_owned(),
    };
    format!("{scheme}://{name}{port}/{path}")
}

/// The model that is chosen where only a key is given. They age; docs/models.md says so.
const fn usual_model(kind: AdapterKind) -> Option<&'static str> {
    match kind {
        AdapterKind::OpenAI => Some("gpt-5.4-mini"),
        AdapterKind::Anthropic => Some("claude-sonnet-4-6"),
        AdapterKind::Gemini => Some("gemini-3.8-flash"),
        _ => None,
    }
}

/// The first model that is not plainly for something else than conversations.
fn first_for_chat(names: Vec<String>) -> Option<String> {
    const OTHER_USES: [&str; 13] = [
        "embed",
        "whisper",
        "tts",
        "speech",
        "audio",
        "image",
        "dall-e",
        "moderation",
        "guard",
        "rerank",
        "transcribe",
        "ocr",
        "video",
    ];
    names.into_iter().find(|name| {
        let name = name.to_lowercase();
        !OTHER_USES.iter().any(|other| name.contains(other))
    })
}

#[cfg(test)]
#[path = "models/tests.rs"]
mod tests;
