//! The machine under it: kernel, home, disk, limits.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::process::Resource;

use super::Findings;
use crate::home::Home;
use crate::open;
use crate::settings::Settings;
use crate::table;

/// File handles that a process needs besides connections.
const HANDLES_SPARE: u64 = 256;

/// What the kernel must give, and what it may.
pub(super) fn kernel(found: &mut Findings) {
    match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(_) => {}
        Err(error) => found.problem(
            "kernel",
            format!("the boot id cannot be read: {error}"),
            "mount /proc: leases need to know which boot they are of",
        ),
    }
    if let Err(error) = std::fs::metadata("/proc/self/exe") {
        found.problem(
            "kernel",
            format!("/proc/self/exe cannot be used: {error}"),
            "mount /proc: commands are started through it",
        );
    }
    let beneath = rustix::fs::openat2(
        CWD,
        c".",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    );
    match beneath {
        Ok(_) => found.ok("kernel", "boot id, /proc, openat2"),
        Err(error) => found.note(
            "kernel",
            format!(
                "openat2 does not work here ({error}): paths are walked piece by piece instead"
            ),
            "nothing is needed; Linux 5.6 or a sandbox that allows openat2 is faster",
        ),
    }
}

/// The folder, its owner and its mode.
pub(super) fn home(settings: &Settings, found: &mut Findings) -> Option<Home> {
    let home = match Home::find(settings) {
        Ok(home) => home,
        Err(error) if error.code == crate::error::Fault::NoHome.code() => {
            let path = settings.home.value.display();
            found.note(
                "home",
                format!("there is none yet at {path} (from {})", settings.home.source),
                "`everturn serve`, `run` or `chat` makes it; if there should be one, name it with --home",
            );
            return None;
        }
        Err(error) => {
            found.error("home", &error);
            return None;
        }
    };
    let mut good = true;
    match std::fs::metadata(home.path()) {
        Ok(meta) => {
            let mode = meta.mode() & 0o777;
            if mode & 0o077 != 0 {
                good = false;
                found.problem(
                    "home",
                    format!("{} can be entered by others (mode {mode:o})", home.path().display()),
                    &format!("chmod 700 {}", home.path().display()),
                );
            }
            let user = rustix::process::geteuid().as_raw();
            if meta.uid() != user {
                good = false;
                found.problem(
                    "home",
                    format!("{} belongs to user {}, not {user}", home.path().display(), meta.uid()),
                    "run everturn as its owner, or give the folder to this user with chown",
                );
            }
        }
        Err(error) => {
            good = false;
            found.problem("home", format!("{error}"), "choose another place with --home DIR");
        }
    }
    if let Err(error) = writable(home.path()) {
        good = false;
        found.problem(
            "home",
            format!("{} cannot be written: {error}", home.path().display()),
            "free some space, remount it for writing, or choose another place with --home DIR",
        );
    }
    if let Err(error) = home.key() {
        good = false;
        found.error("home", &error);
    }
    if good {
        found.ok("home", format!("{} (from {})", home.path().display(), settings.home.source));
    }
    Some(home)
}

/// Makes an unnamed file and lets it go again.
pub(super) fn writable(folder: &Path) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = tempfile::tempfile_in(folder)?;
    file.write_all(b"everturn doctor")?;
    file.sync_all()
}

/// Room where the store is.
pub(super) fn disk(settings: &Settings, home: &Home, found: &mut Findings) {
    let folder = match open::store_folder(settings, home) {
        Ok(folder) => folder,
        Err(error) => return found.error("store", &error),
    };
    let least = settings.limits_min_free_bytes.value.0;
    match rustix::fs::statvfs(&folder) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let said = format!("{} free in {}", table::bytes(free), folder.display());
            if free < least {
                found.problem(
                    "disk",
                    format!("{said}, less than limits.min_free_bytes ({})", table::bytes(least)),
                    "free some space; until then the server takes nothing new",
                );
            } else if free < least.saturating_mul(4) {
                found.note("disk", said, "that is not much; see limits.min_free_bytes");
            } else {
                found.ok("disk", said);
            }
        }
        Err(rustix::io::Errno::NOENT) => {
            found.note("disk", format!("{} is not there yet", folder.display()), "");
        }
        Err(error) => found.problem(
            "disk",
            format!("free space of {} cannot be read: {error}", folder.display()),
            "is the file system mounted?",
        ),
    }
}

/// File handles against the connections that are allowed.
pub(super) fn limits(settings: &Settings, found: &mut Findings) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let needed = settings.limits_connections.value.0.saturating_add(HANDLES_SPARE);
    // `serve` raises the soft limit itself, as far as the hard one allows.
    let most = limit.maximum.unwrap_or(u64::MAX);
    if most < needed {
        found.note(
            "limits",
            format!(
                "{most} open files are allowed, limits.connections = {} needs {needed}",
                settings.limits_connections.value.0
            ),
            "raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower limits.connections",
        );
    } else {
        found.ok("limits", format!("{most} open files are allowed, {needed} are needed"));
    }
    if let Some(size) = rustix::process::getrlimit(Resource::Fsize).current {
        found.note(
            "limits",
            format!("files may not grow beyond {}", table::bytes(size)),
            "the store stops there as on a full disk; ulimit -f unlimited",
        );
    }
}
