//! Who a request comes from and what it may do (promise P14).
//!
//! With no token in the store, a caller on loopback is the principal `local` and may do everything.
//! From the first token on, every request needs one, or the page's cookie, or the key of the home.
//! Tokens are looked up by the hash of their secret, and what was found counts for a second.

mod cookie;
mod guard;
mod origin;
mod scope;
mod secret;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use everturn_api::Code;
use everturn_core::{Principal, Timestamp};
use everturn_engine::Engine;
use everturn_store::rows::Token;
use governor::clock::{Clock as _, DefaultClock};
use governor::state::keyed::HashMapStateStore;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::request::Parts;
use http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use crate::config::ServerConfig;
use crate::problem::{Answer, Refused};
use cookie::{Nonce, Signer};
pub(crate) use guard::{Peer, guard};
use origin::Hosts;
pub use scope::Scope;
pub(crate) use scope::Scopes;
pub use secret::{NoRandomness, fresh_secret, hash_secret, new_token};

/// How long what the store said about a token counts: a revocation is seen within this.
const FRESH: Duration = Duration::from_secs(1);
/// How often the use of a token is noted.
const TOUCH: Duration = Duration::from_secs(60);
/// Tokens remembered.
const CACHE_MAX: usize = 1_024;
/// Log-ins ended and not yet run out that are remembered.
const LOGGED_OUT_MAX: usize = 10_000;

/// Who makes a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// On whose behalf.
    pub(crate) principal: Principal,
    /// What it may do.
    pub(crate) scopes: Scopes,
    credential: Credential,
}

/// What a caller showed.
#[derive(Debug, Clone)]
enum Credential {
    /// Nothing: no token exists and it is on this machine.
    Open,
    /// A secret with this hash.
    Secret([u8; 32]),
    /// The page's cookie, made from such a secret.
    Cookie([u8; 32], Nonce),
}

impl Caller {
    /// Refuses unless the caller has the scope.
    pub(crate) fn require(&self, scope: Scope) -> Answer<()> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        Err(Refused::new(Code::ForbiddenScope, format!("this needs the scope {scope}")))
    }
}

struct Known {
    token: Token,
    seen_at: Instant,
    touched_at: Option<Instant>,
}

/// The whole of it: who may come in.
pub(crate) struct Access {
    engine: Engine,
    hosts: Hosts,
    signer: Signer,
    local_key: Option<[u8; 32]>,
    is_loopback: bool,
    /// Set once a token was seen; never unset, so that revoking the last one opens nothing.
    closed: AtomicBool,
    looked_at: Mutex<Option<Instant>>,
    known: Mutex<HashMap<[u8; 32], Known>>,
    logged_out: Mutex<HashMap<Nonce, Timestamp>>,
    unknown: DefaultDirectRateLimiter,
    rate: RateLimiter<Principal, HashMapStateStore<Principal>, DefaultClock>,
    cookie_name: String,
}

/// No section that holds one of these locks can leave what it guards half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Access {
    pub(crate) fn new(
        engine: Engine,
        config: &ServerConfig,
        bound: SocketAddr,
    ) -> Result<Self, NoRandomness> {
        let quota = |per_s, burst| {
            let at_least_one = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
            Quota::per_second(at_least_one(per_s)).allow_burst(at_least_one(burst))
        };
        Ok(Self {
            engine,
            hosts: Hosts::new(&config.hosts, bound),
            signer: Signer::new(config.local_key.as_ref())?,
            local_key: config.local_key,
            is_loopback: bound.ip().is_loopback(),
            closed: AtomicBool::new(false),
            looked_at: Mutex::default(),
            known: Mutex::default(),
            logged_out: Mutex::default(),
            unknown: RateLimiter::direct(quota(config.unknown_per_s, config.unknown_burst)),
            rate: RateLimiter::hashmap(quota(config.rate_per_s, config.rate_burst)),
            // Cookies are not kept apart by port, so that the name must.
            cookie_name: format!("everturn_{}", bound.port()),
        })
    }

    /// Who makes this request.
    async fn authenticate(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Answer<Caller> {
        if let Some(secret) = bearer(headers)? {
            return self.by_secret(secret).await;
        }
        if let Some(caller) = self.by_cookie(headers).await? {
            return Ok(caller);
        }
        if self.is_open(peer).await? {
            return Ok(local(Credential::Open));
        }
        Err(Refused::new(Code::Unauthorized, "the request shows no token"))
    }

    /// The caller that a secret speaks for.
    pub(crate) async fn by_secret(&self, secret: &str) -> Answer<Caller> {
        let hash = hash_secret(secret);
        self.by_hash(hash, Credential::Secret(hash)).await?.ok_or_else(|| {
            Refused::new(Code::Unauthorized, "the token is unknown, revoked or has run out")
        })
    }

    async fn by_cookie(&self, headers: &HeaderMap) -> Answer<Option<Caller>> {
        let Some(cookie) = self.cookie(headers) else { return Ok(None) };
        self.by_hash(cookie.hash, Credential::Cookie(cookie.hash, cookie.nonce)).await
    }

    fn cookie(&self, headers: &HeaderMap) -> Option<cookie::Cookie> {
        let now = self.engine.clock().now();
        let cookie = headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(name, _)| *name == self.cookie_name)
            .find_map(|(_, value)| self.signer.read(value, now))?;
        (!locked(&self.logged_out).contains_key(&cookie.nonce)).then_some(cookie)
    }

    async fn by_hash(&self, hash: [u8; 32], credential: Credential) -> Answer<Option<Caller>> {
        if self.local_key.is_some_and(|key| bool::from(key.ct_eq(&hash))) {
            return Ok(Some(local(credential)));
        }
        let now = self.engine.clock().now();
        let Some(token) = self.token(hash).await? else { return Ok(None) };
        let has_run_out = token.expires_at.is_some_and(|at| at <= now);
        if token.revoked_at.is_some() || has_run_out || !bool::from(token.hash.ct_eq(&hash)) {
            return Ok(None);
        }
        self.touch(hash, &token, now);
        let scopes = Scopes::of(&token.scopes);
        Ok(Some(Caller { principal: token.principal, scopes, credential }))
    }

    /// The token of a hash, as the store had it a second ago at most.
    async fn token(&self, hash: [u8; 32]) -> Answer<Option<Token>> {
        let was_known = {
            let known = locked(&self.known);
            match known.get(&hash) {
                Some(entry) if entry.seen_at.elapsed() < FRESH => {
                    return Ok(Some(entry.token.clone()));
                }
                entry => entry.is_some(),
            }
        };
        if !was_known && let Err(wait) = self.unknown.check() {
            metrics::counter!("everturn_rate_limited_total", "what" => "unknown_token")
                .increment(1);
            let detail = "too many requests with tokens that are not known";
            return Err(limited(detail, wait.wait_time_from(DefaultClock::default().now())));
        }
        // Taken before the store is asked: what it says is no fresher than this.
        let seen_at = Instant::now();
        let found = self.engine.read().token_by_hash(&hash).await?;
        let mut known = locked(&self.known);
        match &found {
            Some(token) => {
                if known.len() >= CACHE_MAX && !known.contains_key(&hash) {
                    known.retain(|_, entry| entry.seen_at.elapsed() < TOUCH);
                    if known.len() >= CACHE_MAX {
                        known.clear();
                    }
                }
                let touched_at = known.get(&hash).and_then(|entry| entry.touched_at);
                known.insert(hash, Known { token: token.clone(), seen_at, touched_at });
            }
            None => {
                known.remove(&hash);
            }
        }
        Ok(found)
    }

    /// Notes in the store that a token is used, once a minute.
    fn touch(&self, hash: [u8; 32], token: &Token, now: Timestamp) {
        {
            let mut known = locked(&self.known);
            let Some(entry) = known.get_mut(&hash) else { return };
            if entry.touched_at.is_some_and(|at| at.elapsed() < TOUCH) {
                return;
            }
            entry.touched_at = Some(Instant::now());
        }
        let recent = u64::try_from(TOUCH.as_millis()).unwrap_or(u64::MAX);
        if token.last_used_at.is_some_and(|at| now.since_ms(at) < recent) {
            return;
        }
        let (engine, id) = (self.engine.clone(), token.id.clone());
        tokio::spawn(async move {
            if let Err(error) = engine.touch_token(id.clone()).await {
                tracing::debug!(token = %id, %error, "cannot note the use of a token");
            }
        });
    }

    /// Forgets what is known of tokens, because one was just made or revoked here.
    pub(crate) fn forget(&self) {
        locked(&self.known).clear();
        *locked(&self.looked_at) = None;
    }

    /// Whether no token is needed.
    async fn is_open(&self, peer: Option<IpAddr>) -> Answer<bool> {
        if !self.is_loopback || !peer.is_some_and(|ip| ip.is_loopback()) {
            return Ok(false);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let is_fresh = locked(&self.looked_at).is_some_and(|at| at.elapsed() < FRESH);
        if !is_fresh {
            let looked_at = Instant::now();
            if !self.engine.read().tokens().await?.is_empty() {
                self.closed.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            *locked(&self.looked_at) = Some(looked_at);
        }
        Ok(true)
    }

    /// Whether a caller who was let in a while ago would be let in now. A store that does not
    /// answer shuts nobody out who is in.
    pub(crate) async fn is_still_welcome(&self, caller: &Caller) -> bool {
        let again = match &caller.credential {
            Credential::Open => {
                let loopback = Some(IpAddr::from([127, 0, 0, 1]));
                return self.is_open(loopback).await.unwrap_or(true);
            }
            Credential::Secret(hash) => self.by_hash(*hash, caller.credential.clone()).await,
            Credential::Cookie(hash, nonce) => {
                if locked(&self.logged_out).contains_key(nonce) {
                    return false;
                }
                self.by_hash(*hash, caller.credential.clone()).await
            }
        };
        match again {
            Ok(again) => again.is_some_and(|now| now.principal == caller.principal),
            Err(_) => true,
        }
    }

    /// Counts a request against its principal's rate.
    fn count(&self, principal: &Principal) -> Answer<()> {
        self.rate.check_key(principal).map_err(|wait| {
            metrics::counter!("everturn_rate_limited_total", "what" => "requests").increment(1);
            let wait = wait.wait_time_from(DefaultClock::default().now());
            limited("more requests than this server takes from one principal", wait)
        })
    }

    /// Forgets what has no meaning any more.
    pub(crate) fn tidy(&self) {
        self.rate.retain_recent();
        let now = self.engine.clock().now();
        locked(&self.logged_out).retain(|_, expires_at| *expires_at > now);
    }

    /// The `Set-Cookie` of a fresh log-in.
    pub(crate) fn log_in(&self, caller: &Caller, is_secure: bool) -> Answer<String> {
        let (Credential::Secret(hash) | Credential::Cookie(hash, _)) = &caller.credential else {
            return Err(Refused::new(Code::Unauthorized, "the request shows no token"));
        };
        let now = self.engine.clock().now();
        let value = self.signer.issue(*hash, now).map_err(|error| {
            tracing::error!(%error, "no cookie could be made");
            Refused::new(Code::Internal, "no cookie could be made")
        })?;
        Ok(self.set_cookie(&value, cookie::LIFE_S, is_secure))
    }

    /// Ends a log-in, and answers the `Set-Cookie` that removes it.
    pub(crate) fn log_out(&self, headers: &HeaderMap) -> String {
        if let Some(cookie) = self.cookie(headers) {
            let mut ended = locked(&self.logged_out);
            if ended.len() < LOGGED_OUT_MAX {
                ended.insert(cookie.nonce, cookie.expires_at);
            }
        }
        self.set_cookie("", 0, false)
    }

    fn set_cookie(&self, value: &str, max_age_s: u64, is_secure: bool) -> String {
        let name = &self.cookie_name;
        let secure = if is_secure { "; Secure" } else { "" };
        format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}")
    }
}

fn local(credential: Credential) -> Caller {
    Caller { principal: Principal::local(), scopes: Scopes::ALL, credential }
}

fn limited(detail: &str, wait: Duration) -> Refused {
    let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
    Refused::new(Code::RateLimited, detail).retry_after(seconds)
}

/// The secret of an `Authorization: Bearer` header. Any other such header is refused: it was meant
/// to say something.
fn bearer(headers: &HeaderMap) -> Answer<Option<&str>> {
    let refused = |detail: &str| Refused::new(Code::Unauthorized, detail);
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(refused("the request has several Authorization headers"));
    }
    let text =
        value.to_str().map_err(|_| refused("the Authorization header is not visible ASCII"))?;
    let (scheme, secret) = text.split_once(' ').unwrap_or((text, ""));
    let secret = secret.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || secret.is_empty() {
        return Err(refused("the Authorization header is not a Bearer token"));
    }
    Ok(Some(secret))
}

/// Refused at the start: an address that others reach, and nothing that keeps them out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{addr} can be reached from other machines, and no token exists")]
pub struct BindError {
    /// The address.
    pub addr: SocketAddr,
}

impl BindError {
    /// Stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "open_bind"
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        "create a token first (`everturn token create --principal NAME`), or listen on 127.0.0.1"
    }
}

/// Whether a server may listen there: loopback always, anything else only once a token exists.
///
/// # Errors
/// [`BindError`].
pub fn check_bind(addr: SocketAddr, has_tokens: bool) -> Result<(), BindError> {
    if addr.ip().is_loopback() || has_tokens { Ok(()) } else { Err(BindError { addr }) }
}

macro_rules! scoped {
    ($($(#[$doc:meta])* $name:ident = $scope:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) Caller);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Refused;
            async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
                let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
                    Refused::new(Code::Unauthorized, "the request shows no token")
                })?;
                caller.require(Scope::$scope)?;
                Ok(Self(caller))
            }
        }
    )*};
}

scoped! {
    /// A caller who may read.
    Reader = Read;
    /// A caller who may create sessions and send inputs.
    Submitter = Submit;
    /// A caller who may stop, change and delete.
    Controller = Control;
    /// A caller who may answer prompts.
    Approver = Approve;
    /// A caller who may make tokens and drain.
    Admin = Admin;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn only_loopback_is_open_without_a_token() {
        for addr in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0"] {
            assert_eq!(check_bind(addr.parse().unwrap(), false), Ok(()));
        }
        for addr in ["0.0.0.0:0", "10.0.0.1:1", "[::]:0"] {
            let addr = addr.parse().unwrap();
            assert_eq!(check_bind(addr, false), Err(BindError { addr }));
            assert_eq!(check_bind(addr, true), Ok(()));
        }
    }

    #[test]
    fn a_bearer_header_is_read_strictly() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(|secret| secret.map(str::to_owned)).map_err(|_| ())
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["Bearer evt_x"]), Ok(Some("evt_x".to_owned())));
        assert_eq!(of(&["bearer  evt_x "]), Ok(Some("evt_x".to_owned())));
        for bad in [&["Basic eDp5"][..], &["Bearer"], &["Bearer "], &["evt_x"], &["Bearer a"; 2]] {
            assert_eq!(of(bad), Err(()), "{bad:?}");
        }
    }
}
