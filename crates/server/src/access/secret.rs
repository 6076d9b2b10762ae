//! Secrets: how they are made, and what of them is kept.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use everturn_core::{Principal, Timestamp, TokenId};
use everturn_store::rows::Token;
use rand::TryRng as _;
use sha2::{Digest as _, Sha256};

use super::scope::Scope;

/// How every token begins, so that people and scanners recognise one that leaked.
const PREFIX: &str = "evt_";

/// Why no secret could be made.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers: {0}")]
pub struct NoRandomness(String);

/// A fresh secret: `evt_` and 256 random bits. It is shown once and kept nowhere.
///
/// # Errors
/// The system has no randomness to give.
pub fn fresh_secret() -> Result<String, NoRandomness> {
    let bytes = random::<32>()?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// What is kept of a secret: SHA-256 of all its text. A secret has 256 random bits, so that no
/// slower hash would protect it better.
#[must_use]
pub fn hash_secret(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// A new token, as it is stored, and its secret.
///
/// # Errors
/// The system has no randomness to give.
pub fn new_token(
    id: TokenId,
    principal: Principal,
    scopes: &[Scope],
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
) -> Result<(Token, String), NoRandomness> {
    let secret = fresh_secret()?;
    let mut scopes = scopes.to_vec();
    scopes.sort_unstable();
    scopes.dedup();
    let token = Token {
        id,
        hash: hash_secret(&secret),
        principal,
        scopes: scopes.iter().map(ToString::to_string).collect(),
        created_at,
        expires_at,
        last_used_at: None,
        revoked_at: None,
    };
    Ok((token, secret))
}

/// Random bytes from the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0_u8; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| NoRandomness(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn secrets_differ_and_only_their_hash_is_kept() {
        let (token, secret) = new_token(
            TokenId::new("tok_1").unwrap(),
            Principal::local(),
            &[Scope::Submit, Scope::Read, Scope::Read],
            Timestamp(0),
            None,
        )
        .unwrap();
        assert_eq!(secret.len(), PREFIX.len() + 43);
        assert_ne!(secret, fresh_secret().unwrap());
        assert_eq!(token.hash, hash_secret(&secret));
        assert_eq!(token.scopes, ["read", "submit"]);
        assert!(!format!("{token:?}").contains(&secret));
    }
}
