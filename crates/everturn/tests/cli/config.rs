//! Settings from outside: layers, lines, and what is refused.

use everturn_sim::server::Home;
use serde_json::Value;

use crate::support::{ended, everturn, json};

fn setting<'v>(shown: &'v Value, key: &str) -> (&'v str, &'v str) {
    let row = shown.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap();
    (row["value"].as_str().unwrap(), row["source"].as_str().unwrap())
}

/// Flag > environment > file > default, each told with its source.
#[tokio::test]
async fn each_setting_says_where_it_came_from() {
    let home = Home::new().unwrap();
    let file = home.path().join("config.toml");
    std::fs::write(&file, "model = \"script/file\"\nlease_s = 60\n\n[limits]\nqueue = 5\n")
        .unwrap();
    let shown = everturn(&home, &["config", "show", "--json", "--store", "elsewhere"])
        .env("EVERTURN_MODEL", "script/env")
        .env("EVERTURN_STORE", "from-env")
        .env("EVERTURN_RENEW_S", "7")
        .run()
        .await
        .unwrap();
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    let at = |line: u32| format!("{}:{line}", file.display());
    assert_eq!(setting(&shown, "store"), ("elsewhere", "--store"));
    assert_eq!(setting(&shown, "model"), ("script/env", "EVERTURN_MODEL"));
    assert_eq!(setting(&shown, "renew_s"), ("7", "EVERTURN_RENEW_S"));
    assert_eq!(setting(&shown, "lease_s"), ("60", at(2).as_str()));
    assert_eq!(setting(&shown, "limits.queue"), ("5", at(5).as_str()));
    assert_eq!(setting(&shown, "listen"), ("127.0.0.1:8787", "default"));
    assert_eq!(setting(&shown, "home").1, "EVERTURN_HOME");
}

/// The home: flag, variable, data folder, home folder, in this order.
#[tokio::test]
async fn the_home_is_where_it_is_said_to_be() {
    let home = Home::new().unwrap();
    let shown = json(&home, &["config", "show", "--json", "--home", "/elsewhere"]).await;
    assert_eq!(setting(&shown, "home"), ("/elsewhere", "--home"));
    let without = |name: &str, value: &str| {
        crate::support::bare(&["config", "show", "--json"]).env("HOME", "/nobody").env(name, value)
    };
    for (name, value, expected) in [
        ("XDG_DATA_HOME", "/data", "/data/everturn"),
        ("XDG_DATA_HOME", "relative", "/nobody/.local/share/everturn"),
        ("EVERTURN_HOME", "", "/nobody/.local/share/everturn"),
    ] {
        let shown = without(name, value).run().await.unwrap();
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
        assert_eq!(setting(&shown, "home").0, expected, "{name}={value}");
    }
}

/// Every fault in a file is named with its line, and nothing is begun.
#[tokio::test]
async fn faults_in_the_file_are_named_with_their_line() {
    let home = Home::new().unwrap();
    let file = home.path().join("config.toml");
    let mut all = String::new();
    for text in [
        "model = 1\n",
        "\n\nlisten = \"nowhere\"\n",
        "[limits]\nqueue = 0\n",
        "[limits]\nqueue = \"many\"\n",
        "[limits]\nqeue = 5\n",
        "modle = \"script/demo\"\n",
        "brand_new = true\n",
        "limits = 5\n",
        "lease_s = 30\nlease_s = 31\n",
        "[tools]\npass_env = [\"A\", 1]\n",
        "[journal]\nfsync = \"sometimes\"\n",
        "home = \"/x\"\n",
        "lease_s = 10\nrenew_s = 10\n",
        "not toml at all",
    ] {
        std::fs::write(&file, text).unwrap();
        let ended = ended(&home, &["config", "show"]).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{text}: {ended:?}");
        all.push_str(&format!("{text}=> {}\n", ended.stderr));
    }
    let all = all.replace(&file.display().to_string(), "config.toml");
    insta::assert_snapshot!("faults_in_the_file", all);
}

/// A value that cannot be used is refused wherever it stands.
#[tokio::test]
async fn faults_in_the_environment_are_named() {
    let home = Home::new().unwrap();
    let ended = everturn(&home, &["config", "show"]).env("EVERTURN_LIMITS_QUEUE", "lots");
    let ended = ended.run().await.unwrap();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("EVERTURN_LIMITS_QUEUE: limits.queue must be"), "{ended:?}");
    let ended = everturn(&home, &["config", "show", "--config", "/nowhere/x.toml"]).run().await;
    let ended = ended.unwrap();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("/nowhere/x.toml"), "{ended:?}");
}
