//! The browser part: its packages, its build and its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::counts::Counts;
use crate::{command, counts, setup};

/// `web/package.json`, where there is one, and the names of its scripts.
struct Package {
    folder: PathBuf,
    scripts: Vec<String>,
}

fn package() -> Result<Option<Package>> {
    let folder = command::root().join("web");
    let file = folder.join("package.json");
    if !file.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&file).context("web/package.json cannot be read")?;
    let json: serde_json::Value =
        serde_json::from_str(&text).context("web/package.json is not JSON")?;
    let scripts = json["scripts"].as_object();
    let scripts = scripts.map(|all| all.keys().cloned().collect()).unwrap_or_default();
    Ok(Some(Package { folder, scripts }))
}

impl Package {
    fn has(&self, script: &str) -> bool {
        self.scripts.iter().any(|name| name == script)
    }

    fn npm(&self) -> Command {
        let mut npm = command::command("npm");
        npm.current_dir(&self.folder);
        npm
    }

    /// `npm ci`, unless what it would install is there.
    fn install(&self) -> Result<()> {
        if is_installed(&self.folder)? {
            return Ok(());
        }
        if command::on_path(&["npm"]).is_none() {
            bail!("npm is missing: install Node 20 or later, which brings it");
        }
        command::must_succeed(self.npm().args(["ci", "--no-audit", "--no-fund"]))
    }
}

/// Whether the packages were installed after the lock file last changed.
fn is_installed(folder: &Path) -> Result<bool> {
    let modified =
        |name: &str| std::fs::metadata(folder.join(name)).and_then(|meta| meta.modified()).ok();
    let wanted = modified("package-lock.json").context("web/package-lock.json is missing")?;
    // npm writes this file last, so an installation that broke off is done again.
    Ok(modified("node_modules/.package-lock.json").is_some_and(|done| done >= wanted))
}

/// Builds the page, where it needs building. It is embedded by the binary, so this comes first.
pub(crate) fn build() -> Result<()> {
    match package()? {
        Some(package) if package.has("build") => {
            package.install()?;
            command::must_succeed(package.npm().args(["run", "build"]))
        }
        _ => {
            eprintln!("   nothing to build");
            Ok(())
        }
    }
}

/// Runs the tests of the page in a real browser, and those of other clients, against the real binary.
///
/// They are told where everything is by `EVERTURN_BIN`, `EVERTURN_CHROMIUM`, `EVERTURN_CURL`,
/// `EVERTURN_NGINX` and `EVERTURN_PYTHON`.
pub(crate) fn test(long: bool) -> Result<Counts> {
    let package = package()?.context("web/package.json is missing")?;
    if !package.has("test") {
        bail!("web/package.json has no script `test`");
    }
    let programs = [
        (
            "EVERTURN_CHROMIUM",
            setup::program_of_package(&["chromium", "chromium-browser"], "chromium")?,
        ),
        ("EVERTURN_CURL", setup::program_of_package(&["curl"], "curl")?),
        ("EVERTURN_NGINX", setup::nginx()?),
        (
            "EVERTURN_PYTHON",
            setup::python_with(&package.folder.join("test/clients/requirements.txt"))?,
        ),
    ];
    package.install()?;
    let mut npm = package.npm();
    npm.arg("test");
    command::for_tests(&mut npm, long);
    npm.envs(programs);
    // One line for a test that passed, as in the Rust part.
    npm.env("NODE_OPTIONS", "--test-reporter=spec");
    let (success, output) = command::teed(&mut npm)?;
    Ok(counts::of_node(&output).or_failed(success))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn packages_are_installed_again_when_the_lock_file_is_newer() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_installed(folder.path()).is_err());
        let lock = File::create(folder.path().join("package-lock.json")).unwrap();
        assert!(!is_installed(folder.path()).unwrap());
        std::fs::create_dir(folder.path().join("node_modules")).unwrap();
        File::create(folder.path().join("node_modules/.package-lock.json")).unwrap();
        lock.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        assert!(is_installed(folder.path()).unwrap());
        lock.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
        assert!(!is_installed(folder.path()).unwrap());
    }
}
