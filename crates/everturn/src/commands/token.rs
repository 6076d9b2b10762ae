//! `everturn token`: access for others than the user of this home.

use everturn_core::{Principal, Timestamp, TokenId};
use everturn_server::{Scope, new_token};
use everturn_store::op::{CreateToken, RevokeToken};
use everturn_store::rows::Token;
use everturn_store::{Read as _, Store as _, execute};
use serde::Serialize;

use crate::connect::existing_store;
use crate::error::{CliError, Fault, Result};
use crate::exit::Exit;
use crate::home::Home;
use crate::settings::Settings;
use crate::{open, print, table};

/// A token as it is listed. Its secret is nowhere.
#[derive(Serialize)]
struct Shown {
    id: String,
    principal: String,
    scopes: Vec<String>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
}

impl From<&Token> for Shown {
    fn from(token: &Token) -> Self {
        Self {
            id: token.id.to_string(),
            principal: token.principal.to_string(),
            scopes: token.scopes.clone(),
            created_at: token.created_at.rfc3339(),
            expires_at: token.expires_at.map(Timestamp::rfc3339),
            last_used_at: token.last_used_at.map(Timestamp::rfc3339),
            revoked_at: token.revoked_at.map(Timestamp::rfc3339),
        }
    }
}

/// `token create`
pub(crate) async fn create(
    settings: &Settings,
    principal: &str,
    scope: &str,
    expires: Option<&str>,
) -> Result<Exit> {
    let principal = Principal::new(principal).map_err(|error| {
        CliError::usage(format!("the principal {principal:?}: {error}"))
            .hint("names have 1 to 128 of A-Z a-z 0-9 _ . - and do not start with a dot")
    })?;
    let scopes = scopes(scope)?;
    let now = jiff::Timestamp::now();
    let expires = expires.map(|when| expiry(when, now)).transpose()?;
    let home = Home::make(settings)?;
    let store = open::store(settings, &open::store_folder(settings, &home)?, "token").await?;
    let clock = store.clock();
    let id = TokenId::from_uuid(clock.uuid());
    let (token, secret) = new_token(id, principal, &scopes, clock.now(), expires)
        .map_err(|error| CliError::new(Fault::Io, error.to_string()))?;
    let first = store.tokens().await?.is_empty();
    let named = Shown::from(&token);
    execute(&*store, CreateToken { token }).await?;
    // Alone on stdout, so that it can be put into a file or a variable.
    print::text(&format!("{secret}\n"))?;
    tell(&format!(
        "token {} for {}: {}{}; it is shown this once",
        named.id,
        named.principal,
        named.scopes.join(", "),
        named.expires_at.map(|at| format!(", until {at}")).unwrap_or_default()
    ));
    if first {
        tell(
            "this is the first one: from now on every request needs a token; the command line of this home goes on without",
        );
    }
    Ok(Exit::Completed)
}

#[allow(clippy::print_stderr, reason = "talk of a command")]
fn tell(line: &str) {
    eprintln!("{line}");
}

/// `token list`
pub(crate) async fn list(settings: &Settings, json: bool) -> Result<Exit> {
    let home = Home::find(settings)?;
    let store = existing_store(settings, &home, "token").await?;
    let tokens: Vec<Shown> = store.tokens().await?.iter().map(Shown::from).collect();
    if json {
        print::json(&tokens)?;
        return Ok(Exit::Completed);
    }
    let now = store.clock().now().rfc3339();
    let rows: Vec<_> = tokens
        .iter()
        .map(|token| {
            // Times on the wire are of one form, so that they compare as text.
            let state = match (&token.revoked_at, &token.expires_at) {
                (Some(at), _) => format!("revoked {}", table::time(at)),
                (None, Some(at)) if *at <= now => format!("expired {}", table::time(at)),
                (None, Some(at)) => format!("until {}", table::time(at)),
                (None, None) => "valid".to_owned(),
            };
            vec![
                token.id.clone(),
                token.principal.clone(),
                token.scopes.join(","),
                table::time(&token.created_at),
                token.last_used_at.as_deref().map_or_else(|| "never".to_owned(), table::time),
                state,
            ]
        })
        .collect();
    let head = ["ID", "PRINCIPAL", "SCOPES", "CREATED", "LAST USED", "STATE"];
    print::text(&table::columns(&head, &rows))?;
    Ok(Exit::Completed)
}

/// `token revoke`
pub(crate) async fn revoke(settings: &Settings, id: &str) -> Result<Exit> {
    let missing = || {
        // Whoever gives the secret in place of the id shall not find it in a log (promise P14).
        let shown =
            if id.starts_with("evt_") { "with this id".to_owned() } else { format!("{id:?}") };
        CliError::new(Fault::NoToken, format!("there is no token {shown}"))
            .hint("`everturn token list` shows them; it is the id that is needed, not the secret")
    };
    let token_id = TokenId::new(id).map_err(|_| missing())?;
    let home = Home::find(settings)?;
    let store = existing_store(settings, &home, "token").await?;
    let tokens = store.tokens().await?;
    let before = tokens.iter().find(|token| token.id == token_id).and_then(|it| it.revoked_at);
    if let Some(at) = before {
        tell(&format!("token {id} was revoked already, {}", table::time(&at.rfc3339())));
        return Ok(Exit::Completed);
    }
    if !execute(&*store, RevokeToken { token_id }).await? {
        return Err(missing());
    }
    tell(&format!("token {id} is revoked; a running server knows within seconds"));
    Ok(Exit::Completed)
}

fn scopes(list: &str) -> Result<Vec<Scope>> {
    let known = || Scope::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut scopes = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let scope = Scope::parse(word).ok_or_else(|| {
            CliError::usage(format!("there is no scope {word:?}"))
                .hint(format!("scopes: {}", known()))
        })?;
        scopes.push(scope);
    }
    if scopes.is_empty() {
        return Err(CliError::usage("a token needs a scope").hint(format!("scopes: {}", known())));
    }
    Ok(scopes)
}

/// `90d`, `12h`, `2027-01-31` or a full time.
fn expiry(when: &str, now: jiff::Timestamp) -> Result<Timestamp> {
    let wrong = |why: &str| {
        CliError::usage(format!("--expires {when:?}: {why}"))
            .hint("for example 12h, 90d, 2027-01-31 or 2027-01-31T12:00:00Z")
    };
    let at = if let Ok(at) = when.parse::<jiff::Timestamp>() {
        at
    } else if let Ok(date) = when.parse::<jiff::civil::Date>() {
        date.to_zoned_datetime(jiff::tz::TimeZone::system())
            .map_err(|error| wrong(&error.to_string()))?
            .timestamp()
    } else {
        let (number, unit) =
            when.split_at(when.len() - when.chars().last().map_or(0, char::len_utf8));
        let seconds = match unit {
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            "w" => 604_800,
            _ => return Err(wrong("neither a length of time nor a date")),
        };
        let number: i64 =
            number.parse().map_err(|_| wrong("neither a length of time nor a date"))?;
        number
            .checked_mul(seconds)
            .and_then(|s| now.checked_add(jiff::SignedDuration::from_secs(s)).ok())
            .ok_or_else(|| wrong("too far away"))?
    };
    if at <= now {
        return Err(wrong("that is not in the future"));
    }
    Ok(Timestamp(at.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_a_length_or_a_date_in_the_future() {
        let now: jiff::Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        let of = |when: &str| expiry(when, now).map(Timestamp::rfc3339);
        assert_eq!(of("90d").unwrap(), "2027-02-28T00:00:00.000Z");
        assert_eq!(of("12h").unwrap(), "2026-11-30T12:00:00.000Z");
        assert_eq!(of("2027-01-31T12:00:00Z").unwrap(), "2027-01-31T12:00:00.000Z");
        for bad in ["", "d", "90", "90x", "-1d", "0d", "2020-01-01", "soon", "9999999999999w", "9é"]
        {
            assert_eq!(of(bad).unwrap_err().code, "usage", "{bad}");
        }
    }

    #[test]
    fn scopes_are_words_of_the_list() {
        assert_eq!(scopes("read, submit").unwrap(), [Scope::Read, Scope::Submit]);
        for bad in ["", "fly", "read,fly", ","] {
            assert_eq!(scopes(bad).unwrap_err().code, "usage", "{bad}");
        }
    }
}
