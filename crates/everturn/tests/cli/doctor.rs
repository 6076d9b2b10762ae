//! `everturn doctor` on homes that are well and homes that are not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use everturn_sim::server::Home;
use serde_json::Value;

use crate::support::{QUICK, ended, everturn, stdout};

async fn doctor(home: &Home, words: &[&str]) -> (Option<i32>, Value) {
    let words = [&["doctor", "--json", "--model", "script/demo"], words].concat();
    let ended = ended(home, &words).await;
    let found = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended.code, found)
}

fn problems(found: &Value) -> Vec<(String, String)> {
    let checks = found["checks"].as_array().unwrap();
    let word = |check: &Value, field: &str| check[field].as_str().unwrap().to_owned();
    checks
        .iter()
        .filter(|check| check["state"] == "problem")
        .inspect(|check| assert!(check["hint"].is_string(), "nothing to do about {check}"))
        .map(|check| (word(check, "check"), word(check, "detail")))
        .collect()
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A home that works, while a server runs on it and a turn is under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_good_home_is_found_good() {
    let home = Home::new().unwrap();
    mode(&home.path(), 0o700);
    let model = home.script(QUICK).unwrap();
    let server = home.serve(&model).unwrap().start().await.unwrap();
    let run = everturn(&home, &["run", "--session", "busy", "hang"]).start().unwrap();
    run.out.wait_for_text("So far, ").await.unwrap();
    let (code, found) = doctor(&home, &[]).await;
    assert_eq!((code, problems(&found)), (Some(0), vec![]), "{found}");
    assert_eq!(found["ok"], true);
    let said = found.to_string();
    let at = format!("no token: {} is open", server.address);
    for word in
        [&at, &server.address, "local/busy: held by node_", "(serve, started", "whole, schema"]
    {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    let shown = stdout(&home, &["doctor", "--model", "script/demo"]).await;
    assert!(shown.contains("no problem found"), "{shown}");
}

/// No home yet is no problem, and none is made.
#[tokio::test]
async fn a_home_that_is_not_there_is_only_noted() {
    let home = Home::new().unwrap();
    let none = home.work().join("none");
    let (code, found) = doctor(&home, &["--home", none.to_str().unwrap()]).await;
    assert_eq!((code, problems(&found)), (Some(0), vec![]), "{found}");
    assert!(!none.exists());
}

/// Each thing that is wrong is named, with what to do.
#[tokio::test]
async fn what_is_wrong_is_named_with_what_to_do() {
    let home = Home::new().unwrap();
    mode(&home.path(), 0o755);
    stdout(&home, &["run", "--model", "script/demo", "--session", "s", "run date"]).await;
    let (code, found) = doctor(&home, &["--workspace", "/nowhere"]).await;
    let named: Vec<_> = problems(&found).into_iter().map(|(check, _)| check).collect();
    assert_eq!(
        (code, named),
        (Some(1), vec!["home".to_owned(), "workspace".to_owned()]),
        "{found}"
    );

    mode(&home.path(), 0o700);
    let few = everturn(&home, &["doctor", "--json", "--model", "script/demo"])
        .env("EVERTURN_LIMITS_MIN_FREE_BYTES", "1000000000000")
        .env("EVERTURN_LISTEN", "0.0.0.0:80")
        .env("EVERTURN_QUEUE", "1")
        .env("EVERTURN_LEASE", "3")
        .run()
        .await
        .unwrap();
    let found: Value = serde_json::from_str(&few.stdout).unwrap();
    let named: Vec<_> = problems(&found).into_iter().map(|(check, _)| check).collect();
    assert_eq!(
        (few.code, named),
        (Some(1), vec!["disk".to_owned(), "access".to_owned()]),
        "{found}"
    );
    assert!(few.stdout.contains("EVERTURN_QUEUE is set and is no setting"), "{found}");
    for near in ["did you mean EVERTURN_LIMITS_QUEUE?", "did you mean EVERTURN_LEASE_S?"] {
        assert!(few.stdout.contains(near), "{near} is not in {found}");
    }
    assert!(few.stdout.contains("\"1 session, "), "{found}");

    let (code, found) = doctor(&home, &["--model", "nobody/x"]).await;
    assert_eq!(code, Some(1));
    assert!(found.to_string().contains("model_provider_unknown"), "{found}");
}

/// P13: a damaged store, and one of a newer version, are reported and left as they are.
#[tokio::test]
async fn a_store_that_cannot_be_used_is_reported_and_left_alone() {
    let home = Home::new().unwrap();
    mode(&home.path(), 0o700);
    stdout(&home, &["run", "--model", "script/demo", "--session", "s", "run date"]).await;
    let good = std::fs::read(home.database()).unwrap();
    let mut newer = good.clone();
    newer[60..64].copy_from_slice(&999_u32.to_be_bytes());
    let mut damaged = good.clone();
    for byte in &mut damaged[8_192..16_384] {
        *byte = 0xa5;
    }
    let cut = good[..good.len() / 2].to_vec();
    for (name, bytes) in [("newer", newer), ("damaged", damaged), ("cut", cut)] {
        std::fs::write(home.database(), &bytes).unwrap();
        let (code, found) = doctor(&home, &[]).await;
        let named: Vec<_> = problems(&found).into_iter().map(|(check, _)| check).collect();
        assert_eq!(code, Some(1), "{name}: {found}");
        assert!(named.iter().all(|check| check == "store") && !named.is_empty(), "{name}: {found}");
        assert_eq!(std::fs::read(home.database()).unwrap(), bytes, "{name} was written to");
        let refused = ended(&home, &["run", "--model", "script/demo", "hello"]).await;
        let expected = if name == "newer" { "(storage_too_new)" } else { "(storage_corrupt)" };
        assert!(refused.stderr.contains(expected), "{name}: {refused:?}");
    }
}
