//! Where a request comes from: the `Host` and `Origin` headers (promise P14).
//!
//! A web page of somebody else must reach nothing here. Its scripts are kept from reading answers by
//! the browser, as long as this server hands out no CORS header (it has none); from sending by the
//! `Origin` check; and from getting round both with a name of its own that points to this address by
//! the `Host` check.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use everturn_api::Code;
use http::uri::Authority;
use http::{HeaderMap, Method, header};

use crate::problem::{Answer, Refused};

/// The names of this server.
#[derive(Debug)]
pub(super) struct Hosts {
    names: HashSet<String>,
    bound: IpAddr,
}

impl Hosts {
    pub(super) fn new(names: &[String], bound: SocketAddr) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { names, bound: bound.ip() }
    }

    fn knows(&self, authority: &Authority) -> bool {
        let host = authority.host().to_ascii_lowercase();
        if host == "localhost" || self.names.contains(&host) {
            return true;
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        // A name can be pointed to this address by anyone; an address cannot.
        bare.parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() || ip == self.bound || self.bound.is_unspecified())
    }

    /// Checks a request.
    pub(super) fn check(&self, request: &Request, is_page: bool) -> Answer<()> {
        let headers = request.headers();
        let host = self.host(request)?;
        origin(headers, &host)?;
        fetch_site(request.method(), headers, is_page)
    }

    fn host(&self, request: &Request) -> Answer<Authority> {
        let forbidden = |detail: String| Refused::new(Code::ForbiddenHost, detail);
        let mut values = request.headers().get_all(header::HOST).iter();
        let host = match (values.next(), values.next()) {
            (Some(value), None) => value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<Authority>().ok())
                .filter(|authority| !authority.as_str().contains('@'))
                .ok_or_else(|| forbidden("the Host header is not a host".to_owned()))?,
            (None, _) => return Err(forbidden("the request names no host".to_owned())),
            (Some(_), Some(_)) => {
                return Err(forbidden("the request names several hosts".to_owned()));
            }
        };
        let named = [Some(&host), request.uri().authority()];
        for authority in named.into_iter().flatten() {
            if !self.knows(authority) {
                return Err(forbidden(format!("{} is not this server", authority.host())));
            }
        }
        Ok(host)
    }
}

fn origin(headers: &HeaderMap, host: &Authority) -> Answer<()> {
    let forbidden =
        || Refused::new(Code::ForbiddenOrigin, "the request comes from another site's page");
    for value in headers.get_all(header::ORIGIN) {
        let text = value.to_str().map_err(|_| forbidden())?;
        let (scheme, authority) = text.split_once("://").ok_or_else(forbidden)?;
        let port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return Err(forbidden()),
        };
        let plain = |text: &str| text.strip_suffix(port).unwrap_or(text).to_ascii_lowercase();
        if plain(authority) != plain(host.as_str()) {
            return Err(forbidden());
        }
    }
    Ok(())
}

/// Browsers say themselves when another site's page makes a request. Following a link to the page
/// is all that such a request may do.
fn fetch_site(method: &Method, headers: &HeaderMap, is_page: bool) -> Answer<()> {
    let Some(site) = headers.get("sec-fetch-site") else { return Ok(()) };
    let is_foreign = !matches!(site.as_bytes(), b"same-origin" | b"none");
    let is_link = is_page
        && method == Method::GET
        && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    if is_foreign && !is_link {
        let detail = "the browser says that another site's page makes this request";
        return Err(Refused::new(Code::ForbiddenOrigin, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn asked(bound: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let hosts = Hosts::new(&["chat.example.com".to_owned()], bound.parse().unwrap());
        let mut request = http::Request::post("/v1/sessions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        hosts.check(&request, false).map_err(|refused| refused.problem().code.clone())
    }

    #[test]
    fn the_host_is_loopback_or_the_bound_address_or_a_configured_name() {
        let loopback = "127.0.0.1:8787";
        for good in ["localhost", "LocalHost:8787", "127.0.0.1:1", "127.9.9.9", "[::1]:8787"] {
            assert_eq!(asked(loopback, &[("host", good)]), Ok(()), "{good}");
        }
        assert_eq!(asked(loopback, &[("host", "Chat.Example.com")]), Ok(()));
        for bad in ["evil.example", "localhost.evil.example", "10.0.0.1", "a b", "", "x@localhost"]
        {
            let refused = Err("forbidden_host".to_owned());
            assert_eq!(asked(loopback, &[("host", bad)]), refused, "{bad}");
        }
        assert!(asked(loopback, &[]).is_err());
        assert!(asked(loopback, &[("host", "localhost"), ("host", "evil")]).is_err());
        assert_eq!(asked("10.0.0.1:80", &[("host", "10.0.0.1")]), Ok(()));
        assert!(asked("10.0.0.1:80", &[("host", "10.0.0.2")]).is_err());
        assert_eq!(asked("0.0.0.0:80", &[("host", "10.0.0.2")]), Ok(()));
        assert!(asked("0.0.0.0:80", &[("host", "evil.example")]).is_err());
    }

    #[test]
    fn the_origin_is_the_server_itself() {
        let ask = |host, origin| asked("127.0.0.1:1", &[("host", host), ("origin", origin)]);
        assert_eq!(ask("localhost:8787", "http://localhost:8787"), Ok(()));
        assert_eq!(ask("chat.example.com", "https://chat.example.com"), Ok(()));
        assert_eq!(ask("chat.example.com:443", "https://chat.example.com"), Ok(()));
        for (host, origin) in [
            ("localhost:8787", "http://localhost:3000"),
            ("localhost:8787", "http://127.0.0.1:8787"),
            ("localhost:8787", "http://evil.example"),
            ("localhost:8787", "null"),
            ("localhost:8787", ""),
            ("localhost:8787", "file://"),
        ] {
            let refused = Err("forbidden_origin".to_owned());
            assert_eq!(ask(host, origin), refused, "{origin} to {host}");
        }
    }

    #[test]
    fn what_the_browser_calls_foreign_is_foreign() {
        let ask = |site| asked("127.0.0.1:1", &[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!(ask("same-origin"), Ok(()));
        assert_eq!(ask("none"), Ok(()));
        assert_eq!(ask("cross-site"), Err("forbidden_origin".to_owned()));
        assert_eq!(ask("same-site"), Err("forbidden_origin".to_owned()));
    }
}
