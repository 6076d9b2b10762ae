//! The page's log-in cookie.
//!
//! It names the credential (by its hash), a time and a number of its own, and is signed with a key
//! that the store does not hold: who copies the store can make no cookie. The key is derived from the
//! home's own key, so that a restart of the server logs nobody out; without one it lasts as long as
//! the process.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use everturn_core::Timestamp;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::secret::{NoRandomness, random};

/// How long a log-in lasts.
pub(super) const LIFE_S: u64 = 30 * 24 * 60 * 60;

const VERSION: u8 = 1;
const BODY: usize = 1 + 32 + 8 + 16;
const MAC: usize = 32;

/// A number of the cookie's own, so that one log-in can be ended.
pub(super) type Nonce = [u8; 16];

/// What a cookie says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cookie {
    /// Hash of the credential.
    pub(super) hash: [u8; 32],
    /// When it runs out.
    pub(super) expires_at: Timestamp,
    /// Its own number.
    pub(super) nonce: Nonce,
}

/// Signs and reads cookies.
pub(super) struct Signer {
    key: [u8; 32],
}

impl Signer {
    /// A signer of this home; without a key of the home, of this process.
    pub(super) fn new(local_key: Option<&[u8; 32]>) -> Result<Self, NoRandomness> {
        let key = match local_key {
            Some(local) => {
                let mut mac = keyed(local);
                mac.update(b"everturn cookie v1");
                mac.finalize().into_bytes().into()
            }
            None => random()?,
        };
        Ok(Self { key })
    }

    /// A fresh cookie's text for a credential.
    pub(super) fn issue(&self, hash: [u8; 32], now: Timestamp) -> Result<String, NoRandomness> {
        let cookie =
            Cookie { hash, expires_at: now.plus_ms(LIFE_S * 1_000), nonce: random::<16>()? };
        Ok(self.sign(&cookie))
    }

    fn sign(&self, cookie: &Cookie) -> String {
        let mut bytes = Vec::with_capacity(BODY + MAC);
        bytes.push(VERSION);
        bytes.extend_from_slice(&cookie.hash);
        bytes.extend_from_slice(&cookie.expires_at.0.to_be_bytes());
        bytes.extend_from_slice(&cookie.nonce);
        let mut mac = keyed(&self.key);
        mac.update(&bytes);
        bytes.extend_from_slice(&mac.finalize().into_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a cookie's text: `None` unless this signer wrote it and it has not run out.
    pub(super) fn read(&self, text: &str, now: Timestamp) -> Option<Cookie> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        if bytes.len() != BODY + MAC || bytes.first() != Some(&VERSION) {
            return None;
        }
        let (body, signature) = bytes.split_at(BODY);
        let mut mac = keyed(&self.key);
        mac.update(body);
        mac.verify_slice(signature).ok()?;
        let cookie = Cookie {
            hash: body.get(1..33)?.try_into().ok()?,
            expires_at: Timestamp(i64::from_be_bytes(body.get(33..41)?.try_into().ok()?)),
            nonce: body.get(41..57)?.try_into().ok()?,
        };
        (cookie.expires_at > now).then_some(cookie)
    }
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    // Keys shorter than a block are filled up with zeros, by the definition of HMAC.
    let mut block = [0_u8; 64];
    block[..32].copy_from_slice(key);
    Hmac::<Sha256>::new(&block.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn a_cookie_is_read_by_its_home_alone_and_until_it_runs_out() {
        let home = Signer::new(Some(&[1; 32])).unwrap();
        let text = home.issue([7; 32], Timestamp(1_000)).unwrap();
        let same = Signer::new(Some(&[1; 32])).unwrap();
        assert_eq!(same.read(&text, Timestamp(2_000)).unwrap().hash, [7; 32]);
        let end = Timestamp(1_000).plus_ms(LIFE_S * 1_000);
        assert_eq!(same.read(&text, end), None);
        for other in [Signer::new(Some(&[2; 32])).unwrap(), Signer::new(None).unwrap()] {
            assert_eq!(other.read(&text, Timestamp(2_000)), None);
        }
        assert_ne!(text, home.issue([7; 32], Timestamp(1_000)).unwrap());
    }

    #[test]
    fn no_changed_cookie_is_read() {
        let home = Signer::new(Some(&[1; 32])).unwrap();
        let text = home.issue([7; 32], Timestamp(1_000)).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = URL_SAFE_NO_PAD.encode(changed);
            assert_eq!(home.read(&changed, Timestamp(2_000)), None, "byte {at}");
        }
        for bad in ["", "x", "=", &text[1..], &format!("{text}A")] {
            assert_eq!(home.read(bad, Timestamp(2_000)), None, "{bad:?}");
        }
    }
}
