//! Which of the server's environment variables a command gets to see (promise P14).
//!
//! A list of what is known to be harmless and needed for work, and on top of it a filter for names
//! and values that look like secrets, which also holds for what an operator adds to the list.

use std::ffi::{OsStr, OsString};

/// Names that are passed on.
const NAMES: &[&str] = &[
    "ALL_PROXY",
    "CARGO_HOME",
    "CC",
    "CFLAGS",
    "COLORTERM",
    "CONDA_PREFIX",
    "CXX",
    "CXXFLAGS",
    "EDITOR",
    "FTP_PROXY",
    "GEM_HOME",
    "GEM_PATH",
    "GOBIN",
    "GOFLAGS",
    "GOMODCACHE",
    "GOPATH",
    "GOPROXY",
    "GOROOT",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "JAVA_HOME",
    "LANG",
    "LANGUAGE",
    "LDFLAGS",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "MAKEFLAGS",
    "MANPATH",
    "NODE_PATH",
    "NO_COLOR",
    "NO_PROXY",
    "NVM_DIR",
    "PAGER",
    "PATH",
    "PKG_CONFIG_PATH",
    "PYENV_ROOT",
    "PYTHONPATH",
    "RBENV_ROOT",
    "RUSTFLAGS",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "SHELL",
    "SOURCE_DATE_EPOCH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMP",
    "TEMP",
    "TMPDIR",
    "TZ",
    "TZDIR",
    "USER",
    "VIRTUAL_ENV",
    "all_proxy",
    "ftp_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Beginnings of names that are passed on.
const PREFIXES: &[&str] = &["LC_", "NIX_", "XDG_"];

/// Parts of a name, in capitals, that make it look like a secret.
const SECRET_PARTS: &[&str] =
    &["SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "EVERTURN_", "APIKEY", "API_KEY"];

/// Words of a name (between underscores), in capitals, that make it look like a secret.
const SECRET_WORDS: &[&str] = &["KEY", "KEYS", "PASS", "PASSPHRASE", "PAT", "TOKENS"];

/// Keeps of `all` what a command may see; `extra` names what the operator adds to the list.
pub(super) fn passed(
    all: impl Iterator<Item = (OsString, OsString)>,
    extra: &[String],
) -> Vec<(OsString, OsString)> {
    all.filter(|(name, value)| {
        let Some(name) = name.to_str() else { return false };
        let listed = NAMES.contains(&name)
            || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || extra.iter().any(|own| own == name);
        listed && !looks_secret(name) && !holds_password(value)
    })
    .collect()
}

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_PARTS.iter().any(|part| name.contains(part))
        || name.split('_').any(|word| SECRET_WORDS.contains(&word) || word.ends_with("TOKEN"))
        || name.ends_with("_AUTH")
}

/// Whether the value is an address with a password in it, such as a proxy's.
fn holds_password(value: &OsStr) -> bool {
    let value = value.to_string_lossy();
    value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or(rest);
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pairs: &[(&str, &str)], extra: &[&str]) -> Vec<String> {
        let extra: Vec<String> = extra.iter().map(|name| (*name).to_owned()).collect();
        passed(pairs.iter().map(|(name, value)| (name.into(), value.into())), &extra)
            .into_iter()
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn what_work_needs_passes() {
        let pairs = [("PATH", "/bin"), ("HOME", "/h"), ("LC_ALL", "C"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(kept(&pairs, &[]), ["PATH", "HOME", "LC_ALL", "XDG_CACHE_HOME"]);
    }

    #[test]
    fn secrets_do_not_pass_even_when_asked_for() {
        let names = [
            "OPENAI_API_KEY",
            "openai_api_key",
            "GITHUB_TOKEN",
            "GH_PAT",
            "AWS_SECRET_ACCESS_KEY",
            "MY_SECRET_THING",
            "DB_PASSWORD",
            "PGPASSWORD",
            "NPM_AUTH",
            "EVERTURN_TOKEN",
            "EVERTURN_HOME",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "OPENAI_APIKEY",
            "SMTP_PASS",
            "XDG_API_KEY",
            "LC_TOKEN",
        ];
        let pairs: Vec<_> = names.iter().map(|name| (*name, "x")).collect();
        assert_eq!(kept(&pairs, &names), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_listed_does_not_pass_until_asked_for() {
        assert_eq!(kept(&[("DATABASE_URL", "x")], &[]), Vec::<String>::new());
        assert_eq!(kept(&[("DATABASE_URL", "x")], &["DATABASE_URL"]), ["DATABASE_URL"]);
    }

    #[test]
    fn an_address_with_a_password_does_not_pass() {
        let pairs = [
            ("HTTP_PROXY", "http://user:hunter2@proxy:3128"),
            ("HTTPS_PROXY", "http://proxy:3128/a:b@c"),
            ("NO_PROXY", "localhost"),
        ];
        assert_eq!(kept(&pairs, &[]), ["HTTPS_PROXY", "NO_PROXY"]);
    }
}
