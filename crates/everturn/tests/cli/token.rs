//! Tokens, from their creation to their end.

use everturn_sim::server::Home;

use crate::support::{QUICK, ended, json, stdout};

/// P14: shown once; from the first one on it is needed; the command line of the home goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_what_its_absence_closes() {
    let home = Home::new().unwrap();
    let model = home.script(QUICK).unwrap();
    let server = home.serve(&model).unwrap().start().await.unwrap();
    let open = server.client().unwrap();
    open.get("/v1/sessions").await.unwrap().expect(200).unwrap();

    let made = ended(&home, &["token", "create", "--principal", "ann", "--expires", "90d"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let secret = made.stdout.trim();
    assert!(secret.starts_with("evt_") && made.stdout.lines().count() == 1, "{made:?}");
    assert!(!made.stderr.contains(secret));
    let list = stdout(&home, &["token", "list", "--json"]).await;
    assert!(!list.contains(secret));
    let list = json(&home, &["token", "list", "--json"]).await;
    let token = &list[0];
    assert_eq!(token["principal"], "ann");
    assert_eq!(token["scopes"], serde_json::json!(["read", "submit", "control", "approve"]));
    assert!(token["expires_at"].is_string() && token["revoked_at"].is_null());

    everturn_sim::wait::until("the door to close", || async {
        Ok((open.get("/v1/sessions").await?.status == 401).then_some(()))
    })
    .await
    .unwrap();
    let ann = server.client().unwrap().with_token(secret);
    ann.get("/v1/sessions").await.unwrap().expect(200).unwrap();
    assert_eq!(stdout(&home, &["run", "hello"]).await, "You said hello.\n");

    let id = token["id"].as_str().unwrap();
    stdout(&home, &["token", "revoke", id]).await;
    everturn_sim::wait::until("the revocation", || async {
        Ok((ann.get("/v1/sessions").await?.status == 401).then_some(()))
    })
    .await
    .unwrap();
    assert!(stdout(&home, &["token", "list"]).await.contains("revoked"));
    let again = ended(&home, &["token", "revoke", id]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.contains("was revoked already"), "{again:?}");
    let again = ended(&home, &["token", "revoke", "tok_nobody"]).await;
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("(token_not_found)"), "{again:?}");
}

/// A key that others could read is not used.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new().unwrap();
    let _server = home.serve("script/demo").unwrap().start().await.unwrap();
    let key = home.path().join("cli.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let refused = ended(&home, &["run", "hello"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("could be read by others"), "{refused:?}");
}
