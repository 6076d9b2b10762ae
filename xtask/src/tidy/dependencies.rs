//! Which crate may depend on which: the direction that keeps the parts apart.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Findings;
use super::tree::Tree;
use crate::command;

/// A crate of the workspace and those it may depend on, in what it ships (tests may use any).
///
/// `store` is above `api` because the stored bytes of an event are the bytes on the wire. `crash` lies
/// beside `core`: everything that can die at a named place uses it. `sim` may use every library, for its
/// benchmarks; the binary ships it as `everturn torture`, and nothing else does.
const ALLOWED: &[(&str, &[&str])] = &[
    ("everturn-core", &[]),
    ("everturn-crash", &[]),
    ("everturn-api", &["everturn-core"]),
    ("everturn-agent", &["everturn-core", "everturn-crash"]),
    ("everturn-hermes", &["everturn-core"]),
    ("everturn-store", &["everturn-core", "everturn-crash", "everturn-api"]),
    ("everturn-sqlite", &["everturn-core", "everturn-crash", "everturn-api", "everturn-store"]),
    (
        "everturn-engine",
        &["everturn-core", "everturn-crash", "everturn-api", "everturn-store", "everturn-agent"],
    ),
    ("everturn-server", &["everturn-core", "everturn-api", "everturn-store", "everturn-engine"]),
    ("everturn", BINARY),
    ("everturn-sim", LIBRARIES),
    ("xtask", &[]),
];

const LIBRARIES: &[&str] = &[
    "everturn-core",
    "everturn-crash",
    "everturn-api",
    "everturn-agent",
    "everturn-hermes",
    "everturn-store",
    "everturn-sqlite",
    "everturn-engine",
    "everturn-server",
];

/// Every library, and the harness behind `torture`.
const BINARY: &[&str] = &[
    "everturn-core",
    "everturn-crash",
    "everturn-api",
    "everturn-agent",
    "everturn-hermes",
    "everturn-store",
    "everturn-sqlite",
    "everturn-engine",
    "everturn-server",
    "everturn-sim",
];

/// What `core` must not be able to reach: I/O, an executor, a clock, randomness, serialisation.
const NOT_IN_CORE: &[&str] =
    &["tokio", "serde", "serde_json", "rusqlite", "reqwest", "axum", "rand", "jiff", "tracing"];

/// Beside the binary, only test code may depend on this one.
const HARNESS: &str = "everturn-sim";

/// Asks cargo what every crate depends on, and compares.
pub(super) fn check(_: &Tree, found: &mut Findings) {
    if let Err(error) = metadata().and_then(|metadata| compare(&metadata, found)) {
        found.missing(format!("the dependencies cannot be read: {error:#}"));
    }
}

fn metadata() -> Result<Value> {
    let mut cargo = command::cargo();
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let output = cargo.output().context("cargo metadata could not be started")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn compare(metadata: &Value, found: &mut Findings) -> Result<()> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let name_of = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let members: Vec<String> = packages.iter().map(name_of).collect();
    for package in packages {
        let name = name_of(package);
        let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
            found.missing(format!("{name} is not in the table of xtask's dependencies.rs: add it"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = name_of(dependency);
            let shipped = dependency["kind"].as_str() != Some("dev");
            if shipped && members.contains(&on) && !allowed.contains(&on.as_str()) {
                let why = if on == HARNESS {
                    "it is for the binary and for tests (dev-dependencies) only"
                } else {
                    "the table in xtask's dependencies.rs does not allow it"
                };
                found.missing(format!("{name} depends on {on}: {why}"));
            }
            if shipped && name == "everturn-core" && NOT_IN_CORE.contains(&on.as_str()) {
                found.missing(format!("{name} depends on {on}: core only decides"));
            }
        }
        if let Some(manifest) = package["manifest_path"].as_str() {
            // Cargo's metadata does not say whether lints are inherited.
            let text = std::fs::read_to_string(manifest)?;
            if !text.contains("[lints]\nworkspace = true") {
                found.missing(format!("{name} does not inherit the workspace's lints"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(packages: Value) -> Vec<String> {
        let mut found = Findings::default();
        compare(&json!({ "packages": packages }), &mut found).unwrap();
        found.problems
    }

    #[test]
    fn a_dependency_against_the_direction_is_found() {
        let packages = json!([
            { "name": "everturn-core", "dependencies": [{ "name": "everturn-store", "kind": null }] },
            { "name": "everturn-store", "dependencies": [{ "name": "everturn-core", "kind": null }] },
        ]);
        assert_eq!(
            problems(packages),
            ["everturn-core depends on everturn-store: the table in xtask's dependencies.rs does \
              not allow it"]
        );
    }

    #[test]
    fn tests_may_use_any_crate_and_only_the_binary_ships_sim() {
        let packages = json!([
            { "name": "everturn-core", "dependencies": [{ "name": "everturn-sim", "kind": "dev" }] },
            { "name": "everturn", "dependencies": [{ "name": "everturn-sim", "kind": null }] },
            { "name": "everturn-server", "dependencies": [{ "name": "everturn-sim", "kind": null }] },
            { "name": "everturn-sim", "dependencies": [{ "name": "everturn-sqlite", "kind": null }] },
            { "name": "everturn-sqlite", "dependencies": [] },
        ]);
        assert_eq!(
            problems(packages),
            ["everturn-server depends on everturn-sim: it is for the binary and for tests \
              (dev-dependencies) only"]
        );
    }

    #[test]
    fn core_stays_without_io_and_new_crates_need_a_row() {
        let packages = json!([
            { "name": "everturn-core", "dependencies": [
                { "name": "tokio", "kind": null },
                { "name": "serde", "kind": "dev" },
            ] },
            { "name": "everturn-new", "dependencies": [] },
        ]);
        let found = problems(packages);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], "everturn-core depends on tokio: core only decides");
        assert!(found[1].starts_with("everturn-new is not in the table"));
    }
}
