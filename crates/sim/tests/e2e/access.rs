//! Who gets in (P14): loopback only, own host and origin only, tokens, principals.

use std::time::Duration;

use everturn_sim::client::Client;
use everturn_sim::server::Home;
use everturn_sim::wait;
use reqwest::Method;
use serde_json::json;

use crate::common::{stdout, verify};

const SCRIPT: &str = "[[rule]]\nreply = [{ text = \"Yes.\" }]\n";

/// A page elsewhere can neither name this server by a host name of its own nor speak from its own
/// origin.
#[tokio::test(flavor = "multi_thread")]
async fn another_host_or_origin_is_refused() {
    let home = Home::new().unwrap();
    let _server = home.serve(&home.script(SCRIPT).unwrap()).unwrap().start().await.unwrap();
    let client = home.client().unwrap();
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example"] {
        let request = client.request(Method::GET, "/v1/sessions").header("Host", host);
        let answer = client.send(request).await.unwrap();
        assert_eq!(answer.problem(403).unwrap(), "forbidden_host", "{host}");
    }
    for origin in ["http://evil.example", "null", "https://127.0.0.1.evil.example"] {
        let request = client
            .request(Method::POST, "/v1/sessions/s/inputs")
            .header("Origin", origin)
            .json(&json!({ "text": "hello" }));
        let answer = client.send(request).await.unwrap();
        assert_eq!(answer.problem(403).unwrap(), "forbidden_origin", "{origin}");
    }
    assert_eq!(client.get("/v1/sessions/s").await.unwrap().status, 404);
    let own = client.address();
    let request = client.request(Method::GET, "/v1/sessions").header("Origin", own);
    assert_eq!(client.send(request).await.unwrap().status, 200);
}

/// Waits, a few seconds at most, until the server no longer lets this client in.
async fn until_refused(client: &Client, path: &str) {
    let refused = wait::until_for(Duration::from_secs(5), "a refusal", || async {
        let answer = client.get(path).await?;
        Ok((answer.status != 200).then_some(answer))
    });
    assert_eq!(refused.await.unwrap().problem(401).unwrap(), "unauthorized");
}

/// From the first token on every request needs one; it speaks for its principal, within its scopes,
/// until it is revoked. The command line of the same home goes on working.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_let_in_whom_they_name_and_nobody_else() {
    let home = Home::new().unwrap();
    let server = home.serve(&home.script(SCRIPT).unwrap()).unwrap().start().await.unwrap();
    let anonymous = home.client().unwrap();
    let open = anonymous.say("mine", "r1", "hello").await.unwrap();
    anonymous.outcome(&open.input_id).await.unwrap();

    let secret = stdout(&home, "token", &["create", "--principal", "ann"]).await;
    let ann = home.client().unwrap().with_token(secret.trim());
    let arguments = ["create", "--principal", "bob", "--scope", "read"];
    let secret = stdout(&home, "token", &arguments).await;
    let bob = home.client().unwrap().with_token(secret.trim());
    // What the store says of tokens counts for a second.
    until_refused(&anonymous, "/v1/sessions").await;
    assert_eq!(anonymous.get("/healthz").await.unwrap().status, 200);
    let wrong = home.client().unwrap().with_token("wrong");
    assert_eq!(wrong.get("/v1/sessions").await.unwrap().problem(401).unwrap(), "unauthorized");

    let accepted = ann.say("s", "r1", "hello").await.unwrap();
    assert_eq!(ann.outcome(&accepted.input_id).await.unwrap()["outcome"], "completed");
    verify(&ann, &["s"], vec![accepted.clone()], vec![]).await;
    // Another principal's session is not there, whatever one asks of it.
    for path in [
        "/v1/sessions/s".to_owned(),
        "/v1/sessions/s/messages".to_owned(),
        "/v1/sessions/s/events?after=0".to_owned(),
        format!("/v1/inputs/{}", accepted.input_id),
        "/v1/sessions/mine".to_owned(),
    ] {
        assert_eq!(bob.get(&path).await.unwrap().status, 404, "{path}");
    }
    let list = bob.get("/v1/sessions").await.unwrap().expect(200).unwrap();
    assert_eq!(list["data"], json!([]));
    let submit = bob.submit("b", "r1", "hello").await.unwrap();
    assert_eq!(submit.problem(403).unwrap(), "forbidden_scope");
    assert!(stdout(&home, "sessions", &["show", "mine", "--json"]).await.contains("mine"));

    let list = stdout(&home, "token", &["list", "--json"]).await;
    assert!(!list.contains(secret.trim()), "the list shows a secret");
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let of_ann = list.as_array().unwrap().iter().find(|token| token["principal"] == "ann").unwrap();
    stdout(&home, "token", &["revoke", of_ann["id"].as_str().unwrap()]).await;
    until_refused(&ann, "/v1/sessions/s").await;
    let log = server.process.err.text();
    assert!(!log.contains(secret.trim()), "the log shows a secret");
}

/// A bind outside loopback without a token is refused at the start.
#[tokio::test(flavor = "multi_thread")]
async fn no_bind_outside_loopback_without_a_token() {
    let home = Home::new().unwrap();
    let spec = home.serve(&home.script(SCRIPT).unwrap()).unwrap();
    let Err(ended) = spec.try_start("0.0.0.0:0").await.unwrap() else {
        panic!("it listens to everybody");
    };
    assert!(!matches!(ended.code, Some(0) | None), "{ended:?}");
    assert!(ended.stderr.contains("token"), "{ended:?}");
    // With a token there is nothing wrong with it. Asked of `doctor`, which judges by the same rule,
    // so that no test listens to the network.
    let doctor = async || {
        let spec = home.everturn("doctor").unwrap().args(["--offline", "--model", "script/demo"]);
        let ended = spec.env("EVERTURN_LISTEN", "0.0.0.0:8787").run().await.unwrap();
        format!("{}{}", ended.stdout, ended.stderr)
    };
    assert!(doctor().await.contains("open_bind"), "{}", doctor().await);
    stdout(&home, "token", &["create", "--principal", "ann"]).await;
    let said = doctor().await;
    assert!(said.contains("1 of 1 tokens are valid"), "{said}");
    assert!(!said.contains("open_bind"), "{said}");
}
