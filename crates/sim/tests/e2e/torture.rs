//! The crash harness on the binary under test, and that it would notice.

use everturn_sim::process::{Spec, binary};
use everturn_sim::tier;
use everturn_sim::torture::plan::{Death, Fsync, Plan};
use everturn_sim::torture::plant::Plant;
use everturn_sim::torture::{self, Report, Row};

use crate::common::seed;

/// Homes at the same time.
const AT_ONCE: usize = 12;

fn plan(deaths: Vec<Death>) -> Plan {
    Plan {
        program: binary().unwrap(),
        seed: seed(),
        cycles: 1,
        seconds: None,
        deaths,
        modes: Fsync::ALL.to_vec(),
        keep: false,
        at_once: AT_ONCE,
        plant: None,
    }
}

fn points(wanted: impl Fn(&str) -> bool) -> Vec<Death> {
    let points = Death::all().into_iter().filter(|death| matches!(death, Death::Point(_)));
    points.filter(|death| wanted(death.name())).collect()
}

async fn done(plan: &Plan) -> Report {
    let report = torture::run(plan, || {}).await.unwrap();
    let violations: Vec<&String> = report.rows.iter().flat_map(|row| &row.violations).collect();
    assert!(violations.is_empty(), "seed {}: {violations:#?}", report.seed);
    report
}

fn deaths(report: &Report, name: &str) -> Vec<u32> {
    let rows = report.rows.iter().filter(|row| row.death.name() == name);
    rows.map(|row: &Row| row.deaths).collect()
}

/// P1 to P9: a server that dies at any named place, in either mode, loses nothing and repeats nothing.
/// A place that is not passed fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_named_place_breaks_no_promise() {
    let report = done(&plan(points(|name| !name.ends_with(".record")))).await;
    assert!(report.rows.iter().all(|row| row.deaths >= 1));
}

/// P3, P4: of the transactions that claim, settle, admit, interrupt and continue a turn, a death
/// before any single record leaves nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_death_between_any_two_records_of_a_transaction_leaves_nothing_of_it() {
    let report = done(&plan(points(|name| name.ends_with(".record")))).await;
    for (transaction, least) in [
        ("admit.record", 3),
        ("claim.record", 8),
        ("step.record", 4),
        ("settle.record", 8),
        ("interruption.record", 10),
        ("continuation.record", 8),
        ("prune.record", 3),
    ] {
        let deaths = deaths(&report, transaction);
        assert!(
            deaths.len() == 2 && deaths.iter().all(|count| *count >= least),
            "{transaction}: {deaths:?}"
        );
    }
}

/// P1 to P9: kills at moments that nobody chose, with tools at work.
#[tokio::test(flavor = "multi_thread")]
async fn kills_at_random_moments_break_no_promise() {
    // Three kills a home, and a home for each mode.
    let cycles = u32::try_from(tier::count(2, 167)).unwrap();
    let report = done(&Plan { cycles, ..plan(vec![Death::Kill]) }).await;
    assert_eq!(deaths(&report, "kill"), [cycles * 3; 2]);
}

/// P3, P4, P11: SIGTERM at such moments, and a pause that is longer than the lease.
#[tokio::test(flavor = "multi_thread")]
async fn leaving_and_being_paused_at_any_moment_break_no_promise() {
    done(&plan(vec![Death::Terminate, Death::Pause])).await;
}

/// The harness can say something else than that all is well: a promise that is broken on purpose, in
/// the files of a server that is not running, is found, named, and makes `torture` fail with its seed.
#[tokio::test(flavor = "multi_thread")]
async fn a_violation_planted_in_a_home_is_found_and_torture_fails() {
    let ends = Plant::ALL.into_iter().map(|plant| async move {
        let args = ["torture", "--points", "call.started", "--fsync", "eager", "--seed", "7"];
        let spec = Spec::everturn().unwrap().args(args).args(["--plant", plant.name()]);
        (plant.name(), spec.run().await.unwrap())
    });
    for (promise, ended) in futures::future::join_all(ends).await {
        assert_eq!(ended.code, Some(1), "{promise}: {ended:?}");
        let told = |line: &str| line.trim_start().starts_with(&format!("{promise} s: "));
        assert!(ended.stdout.lines().any(told), "{promise}: {}", ended.stdout);
        assert!(ended.stdout.contains("everturn torture --seed 7 "), "{}", ended.stdout);
    }
}

/// A variable that names no place is told so, with those that there are, before anything happens.
#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_place_is_refused_at_the_start() {
    let home = everturn_sim::server::Home::new().unwrap();
    let spec = home.serve("script/demo").unwrap().env("EVERTURN_CRASH", "claim.recrod:2");
    let ended = spec.try_start("127.0.0.1:0").await.unwrap().unwrap_err();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("there is no crash point \"claim.recrod\""), "{ended:?}");
    assert!(ended.stderr.contains("claim.record, claim.applied"), "{ended:?}");
    assert!(!home.database().exists(), "nothing was touched");
}

/// A database of the first version whose migration is cut off, before its commit and behind it, is
/// migrated by the next start, and says what it says where nothing was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_death_while_an_old_database_is_migrated_leaves_it_whole() {
    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/../sqlite/tests/databases/0001.db");
    let mut told = Vec::new();
    for point in [None, Some("migrate.applied"), Some("migrate.committed")] {
        let home = everturn_sim::server::Home::new().unwrap();
        std::fs::copy(old, home.database()).unwrap();
        let spec = home.serve("script/demo").unwrap();
        if let Some(point) = point {
            let armed = spec.clone().env("EVERTURN_CRASH", point);
            let ended = armed.try_start("127.0.0.1:0").await.unwrap().unwrap_err();
            assert!(ended.code.is_none() && ended.stderr.contains(point), "{ended:?}");
        }
        let _server = spec.start().await.unwrap();
        let client = home.client().unwrap();
        let messages = client.messages("old").await.unwrap();
        assert!(!messages.is_empty());
        told.push((messages, client.session("old").await.unwrap()));
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0], told[2]);
}
