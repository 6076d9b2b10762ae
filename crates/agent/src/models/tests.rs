//! Choosing a model: names, keys, probes.

#![allow(clippy::unwrap_used)]

use everturn_sim::openai::OpenAi;

use super::*;

/// An environment for a test: no Ollama unless it says so.
fn with<'a>(
    variables: &'a [(&'a str, &'a str)],
) -> impl Fn(&str) -> Option<String> + Sync + use<'a> {
    move |name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        match (found, name) {
            (Some((_, value)), _) => Some((*value).to_owned()),
            // Port 1 of this machine: nobody answers.
            (None, "OLLAMA_HOST") => Some("127.0.0.1:1".to_owned()),
            (None, _) => None,
        }
    }
}

async fn model(spec: Option<&str>, variables: &[(&str, &str)]) -> Result<String, ModelError> {
    let resolved = resolve(spec, &with(variables)).await?;
    Ok(resolved.provider.model().to_owned())
}

#[tokio::test]
async fn names() {
    let key = [("OPENAI_API_KEY", "sk-secret-0"), ("OPENROUTER_API_KEY", "sk-secret-1")];
    for (spec, name) in [
        ("openai/gpt-5.4-mini", "openai/gpt-5.4-mini"),
        (" OpenAI/org/model:tag ", "openai/org/model:tag"),
        ("ollama/qwen3:4b", "ollama/qwen3:4b"),
        ("openrouter/a/b", "open_router/a/b"),
        ("open-router/a/b", "open_router/a/b"),
        ("script/demo", "script/demo"),
    ] {
        assert_eq!(model(Some(spec), &key).await.unwrap(), name);
    }
    let env = [("EVERTURN_MODEL", "ollama/x"), ("OPENAI_API_KEY", "sk-secret-0")];
    assert_eq!(model(None, &env).await.unwrap(), "ollama/x");
    assert_eq!(model(Some("openai/y"), &env).await.unwrap(), "openai/y");
    // A compatible server of one's own needs no key.
    assert!(model(Some("openai/y"), &[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")]).await.is_ok());
}

#[tokio::test]
async fn errors_have_a_code_and_a_hint() {
    let bad = |value| [("OPENAI_API_KEY", "sk-secret-0"), ("OPENAI_BASE_URL", value)];
    for (spec, variables, code, hint) in [
        ("gpt-5.4-mini", &[][..], "model_name_invalid", "openai/gpt-5.4-mini"),
        ("openai/", &[], "model_name_invalid", "for example"),
        ("nobody/x", &[], "model_provider_unknown", "anthropic"),
        ("openai/x", &[], "model_key_missing", "OPENAI_API_KEY"),
        ("openai/x", &[("OPENAI_API_KEY", " ")], "model_key_missing", "OPENAI_API_KEY"),
        ("anthropic/x", &[], "model_key_missing", "ANTHROPIC_API_KEY"),
        ("vertex/x", &[("VERTEX_API_KEY", "k")], "model_key_missing", "VERTEX_PROJECT_ID"),
        ("openai/x", &bad("localhost:80"), "model_address_invalid", "http"),
        ("openai/x", &bad("nonsense"), "model_address_invalid", "http"),
        ("openai/x", &bad("http://u:sk-secret-1@h/v1"), "model_address_invalid", "http"),
        ("script/no/such/file.toml", &[], "script_unreadable", "script/demo"),
    ] {
        let error = model(Some(spec), variables).await.unwrap_err();
        assert_eq!(error.code(), code, "{spec}");
        assert!(error.hint().contains(hint), "{spec}: {}", error.hint());
        let failure = Failure::from(error.clone());
        let shown = format!("{error} {error:?} {} {failure:?}", error.hint());
        assert!(!shown.contains("sk-secret"), "{shown}");
    }
}

#[tokio::test]
async fn no_key_shows_anywhere() {
    let variables = [("OPENAI_API_KEY", "sk-secret-0"), ("ANTHROPIC_API_KEY", "sk-secret-1")];
    for spec in [None, Some("anthropic/x")] {
        let resolved = resolve(spec, &with(&variables)).await.unwrap();
        let shown = format!("{resolved:?} {:#?}", resolved.notice);
        assert!(!shown.contains("sk-secret"), "{shown}");
    }
    let setup =
        set_up(AdapterKind::OpenAI, "x", &|name| with(&variables)(name), &ModelOptions::default())
            .unwrap();
    assert!(setup.key.is_some());
    assert!(!format!("{setup:?}").contains("sk-secret"));
    assert!(!format!("{:?}", Hosted::new(setup).unwrap()).contains("sk-secret"));
}

#[tokio::test]
async fn the_first_provider_that_is_set_up_is_chosen() {
    let openai = ("OPENAI_API_KEY", "k");
    let anthropic = ("ANTHROPIC_API_KEY", "k");
    for (variables, provider) in [
        (&[anthropic, openai][..], "openai/"),
        (&[anthropic, ("GITHUB_TOKEN", "k")], "anthropic/"),
        (&[("GOOGLE_API_KEY", "k")], "gemini/"),
    ] {
        let resolved = resolve(None, &with(variables)).await.unwrap();
        assert!(resolved.provider.model().starts_with(provider));
        let notice = resolved.notice.unwrap();
        assert!(notice.contains(resolved.provider.model()) && notice.contains("--model"));
    }
}

#[tokio::test]
async fn a_compatible_server_is_asked_what_it_has() {
    let server = OpenAi::start().await.unwrap();
    server.set_models(["text-embedding-9", "qwen-small", "other"]);
    let base = server.base_url();
    for base in [base.clone(), format!("{base}/")] {
        let variables = [("OPENAI_BASE_URL", base.as_str())];
        assert_eq!(model(None, &variables).await.unwrap(), "openai/qwen-small");
    }
    server.set_models(["text-embedding-9"]);
    let error = model(None, &[("OPENAI_BASE_URL", &base)]).await.unwrap_err();
    assert_eq!(error.code(), "model_list_unavailable");
    drop(server);
    let error = model(None, &[("OPENAI_BASE_URL", &base)]).await.unwrap_err();
    assert_eq!(error.code(), "model_list_unavailable");
    assert!(error.hint().contains("--model openai/NAME"));
}

/// A server that answers every request with this JSON; gives its address.
async fn canned(body: &'static str) -> String {
    let app = axum::Router::new()
        .fallback(move || async move { ([("content-type", "application/json")], body) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[tokio::test]
async fn a_local_ollama_that_answers_is_chosen() {
    let host = canned(r#"{"models":[{"name":"nomic-embed-text"},{"name":"qwen3:4b"}]}"#).await;
    let resolved = resolve(None, &with(&[("OLLAMA_HOST", &host)])).await.unwrap();
    assert_eq!(resolved.provider.model(), "ollama/qwen3:4b");
    assert!(resolved.notice.unwrap().contains("Ollama"));
    // One without a model is as good as none, but it is told.
    let host = canned(r#"{"models":[]}"#).await;
    let resolved = resolve(None, &with(&[("OLLAMA_HOST", &host)])).await.unwrap();
    assert_eq!(resolved.provider.model(), "script/demo");
    assert!(resolved.notice.unwrap().contains("ollama pull"));
}

#[tokio::test]
async fn with_nothing_set_the_demo_answers_and_says_so() {
    let resolved = resolve(None, &with(&[])).await.unwrap();
    assert_eq!(resolved.provider.model(), "script/demo");
    let notice = resolved.notice.unwrap();
    assert!(notice.contains("demo") && notice.contains("OPENAI_API_KEY"));
}

#[test]
fn addresses() {
    let base = |kind, value: &str| {
        let value = value.to_owned();
        base_of(kind, &move |_: &str| Some(value.clone())).unwrap().unwrap()
    };
    for (kind, given, used) in [
        (AdapterKind::OpenAI, "http://h:1/v1", "http://h:1/v1/"),
        (AdapterKind::OpenAI, "https://h/deep/v1/", "https://h/deep/v1/"),
        (AdapterKind::OpenAI, "https://h/v1?api-version=3", "https://h/v1/?api-version=3"),
        (AdapterKind::Anthropic, "https://h", "https://h/v1/"),
        (AdapterKind::Anthropic, "https://h/v1/", "https://h/v1/"),
        (AdapterKind::Anthropic, "https://h/proxy", "https://h/proxy/v1/"),
        (AdapterKind::Ollama, "h", "http://h:11434/"),
        (AdapterKind::Ollama, "0.0.0.0", "http://127.0.0.1:11434/"),
        (AdapterKind::Ollama, "0.0.0.0:99", "http://127.0.0.1:99/"),
        (AdapterKind::Ollama, ":99", "http://127.0.0.1:99/"),
        (AdapterKind::Ollama, "::1", "http://[::1]:11434/"),
        (AdapterKind::Ollama, "[::]:99", "http://[::1]:99/"),
        (AdapterKind::Ollama, "http://h:99/", "http://h:99/"),
        (AdapterKind::Ollama, "https://h/ollama", "https://h/ollama/"),
    ] {
        assert_eq!(base(kind, given), used, "{given}");
    }
    assert_eq!(base_of(AdapterKind::Ollama, &|_| None).unwrap().unwrap(), OLLAMA_DEFAULT);
    assert_eq!(base_of(AdapterKind::OpenAI, &|_| None).unwrap(), None);
}

/// The guide lists every provider.
#[test]
fn the_guide_is_complete() {
    let guide = include_str!("../../../../docs/models.md");
    for name in known() {
        assert!(guide.contains(&format!("`{name}`")), "{name}");
    }
    for kind in [AdapterKind::OpenAI, AdapterKind::Anthropic, AdapterKind::Gemini] {
        assert!(guide.contains(usual_model(kind).unwrap()));
    }
}

#[test]
fn only_models_that_are_known_to_or_named_go_on_in_the_middle_of_a_message() {
    use AdapterKind as K;
    let auto = ContinuePartial::default();
    for (kind, name, expected) in [
        (K::Ollama, "qwen3", true),
        (K::Anthropic, "claude-3-5-haiku-20241022", true),
        (K::Anthropic, "claude-sonnet-4-5-20250929", true),
        (K::Anthropic, "claude-opus-4-20250514", true),
        (K::Anthropic, "claude-sonnet-4-6", false),
        (K::Anthropic, "claude-opus-4-6", false),
        (K::Anthropic, "claude-opus-5", false),
        (K::OpenAI, "gpt-5.4-mini", false),
        (K::Gemini, "gemini-3.8-flash", false),
    ] {
        assert_eq!(auto.holds(kind, name), expected, "{kind:?} {name}");
    }
    let words =
        |words: &[&str]| ContinuePartial::of(words.iter().map(|word| (*word).to_owned()).collect());
    let named = words(&["openai/qwen", "grok", "openrouter/deepseek/"]);
    assert!(named.holds(K::OpenAI, "qwen3-coder") && !named.holds(K::OpenAI, "gpt-5"));
    assert!(named.holds(K::Xai, "grok-5"), "a provider by a name that people use");
    assert!(named.holds(K::OpenRouter, "deepseek/v4") && !named.holds(K::OpenRouter, "x/y"));
    assert!(!named.holds(K::Ollama, "qwen3"), "nothing else is meant");
    for none in [words(&["none"]), words(&[])] {
        assert!(!none.holds(K::Ollama, "qwen3"));
    }
}
