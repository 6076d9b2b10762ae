//! The models of this process: the default, found at the start, and those that sessions name, found
//! when they are first needed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use everturn_agent::models::{self, ContinuePartial, ModelOptions};
use everturn_agent::provider::{Provider, RequestTimeouts};
use everturn_core::Failure;
use everturn_engine::Models;

use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::settings::{Settings, process_env};

/// Models kept ready at the same time; beyond it the oldest choices are looked up again.
const READY_MAX: usize = 256;

/// Finds providers by name.
pub(crate) struct NodeModels {
    default: Arc<dyn Provider>,
    options: ModelOptions,
    ready: Mutex<HashMap<String, Arc<dyn Provider>>>,
}

/// The models and, where the choice was not the person's, a sentence about it.
pub(crate) struct Found {
    pub(crate) models: Arc<NodeModels>,
    pub(crate) notice: Option<String>,
}

/// The settings that hold for every hosted model.
pub(crate) fn options(settings: &Settings) -> ModelOptions {
    ModelOptions {
        timeouts: RequestTimeouts {
            connect: settings.provider_connect_s.value.seconds(),
            first_event: settings.provider_first_event_s.value.seconds(),
            between_events: settings.provider_between_events_s.value.seconds(),
        },
        context_tokens: settings.provider_context_tokens.value.map(|tokens| tokens.0),
        continue_partial: ContinuePartial::of(settings.provider_continue_partial.value.0.clone()),
    }
}

/// Finds the default model.
pub(crate) async fn find(settings: &Settings) -> Result<Found> {
    let options = options(settings);
    let named = settings.model.value.as_deref();
    let found = models::resolve_with(named, &process_env, &options).await.map_err(|error| {
        let misnamed = matches!(
            error,
            models::ModelError::Name { .. } | models::ModelError::UnknownProvider { .. }
        );
        let mut told = CliError::from(Failure::from(error));
        if misnamed {
            // No other moment makes a model of it.
            told.exit = Exit::Usage;
        }
        told
    })?;
    let models = NodeModels { default: found.provider, options, ready: Mutex::new(HashMap::new()) };
    Ok(Found { models: Arc::new(models), notice: found.notice })
}

/// Models for a process that never asks one: the built-in demo stands in.
pub(crate) fn none() -> Result<Arc<NodeModels>> {
    let demo = everturn_agent::script::demo()
        .map_err(|error| CliError::from(Failure::from(models::ModelError::from(error))))?;
    Ok(Arc::new(NodeModels {
        default: Arc::new(demo),
        options: ModelOptions::default(),
        ready: Mutex::default(),
    }))
}

impl NodeModels {
    fn ready(&self, model: &str) -> Option<Arc<dyn Provider>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    fn keep(&self, model: &str, provider: &Arc<dyn Provider>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() >= READY_MAX {
            ready.clear();
        }
        ready.insert(model.to_owned(), Arc::clone(provider));
    }

    /// A session's model is a client's word: it must not make this process open any file. Scripts
    /// are open to sessions if they lie beside the script that the operator chose.
    fn allowed(&self, model: &str) -> bool {
        let Some(path) = script_path(model) else { return true };
        if path == Path::new("demo") {
            return true;
        }
        let folder = |path: &Path| path.canonicalize().ok()?.parent().map(PathBuf::from);
        script_path(self.default.model())
            .filter(|own| *own != Path::new("demo"))
            .is_some_and(|own| folder(own).is_some() && folder(own) == folder(path))
    }
}

fn script_path(model: &str) -> Option<&Path> {
    let (provider, path) = model.split_once('/')?;
    provider.trim().eq_ignore_ascii_case("script").then(|| Path::new(path))
}

#[async_trait]
impl Models for NodeModels {
    async fn provider(&self, model: &str) -> Result<Arc<dyn Provider>, Failure> {
        if model == self.default.model() {
            return Ok(Arc::clone(&self.default));
        }
        if let Some(provider) = self.ready(model) {
            return Ok(provider);
        }
        if !self.allowed(model) {
            return Err(Failure {
                code: "script_not_allowed".to_owned(),
                message: "a session may not name this script".to_owned(),
                permanent: true,
                hint: Some(
                    "scripts beside the one that the process was started with are open to sessions"
                        .to_owned(),
                ),
            });
        }
        let found = models::resolve_with(Some(model), &process_env, &self.options).await?;
        self.keep(model, &found.provider);
        Ok(found.provider)
    }

    fn default_model(&self) -> String {
        self.default.model().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "[[rule]]\nreply = [{ text = \"hello\" }]\n";

    async fn of(default: &str) -> NodeModels {
        let options = ModelOptions::default();
        let found = models::resolve_with(Some(default), &|_| None, &options).await.unwrap();
        NodeModels { default: found.provider, options, ready: Mutex::new(HashMap::new()) }
    }

    #[tokio::test]
    async fn a_session_opens_no_file_but_scripts_beside_the_operators_own() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let script = |dir: &tempfile::TempDir, name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, SCRIPT).unwrap();
            format!("script/{}", path.display())
        };
        let own = script(&dir, "own.toml");
        let beside = script(&dir, "beside.toml");
        let other = script(&elsewhere, "other.toml");

        let models = of(&own).await;
        assert!(models.provider(&own).await.is_ok());
        assert!(models.provider(&beside).await.is_ok());
        assert!(models.provider("script/demo").await.is_ok());
        for forbidden in [other.as_str(), "script//etc/passwd", "Script//etc/passwd"] {
            let failure = models.provider(forbidden).await.err().unwrap();
            assert_eq!(failure.code, "script_not_allowed", "{forbidden}");
            assert!(!failure.message.contains("passwd"));
        }

        let demo = of("script/demo").await;
        assert_eq!(demo.provider(&beside).await.err().unwrap().code, "script_not_allowed");
    }

    #[tokio::test]
    async fn a_model_that_does_not_exist_is_a_failure_with_a_code() {
        let models = of("script/demo").await;
        let failure = models.provider("nobody/nothing").await.err().unwrap();
        assert_eq!(failure.code, "model_provider_unknown");
    }
}
