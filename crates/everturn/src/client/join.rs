//! Finding the server of a home.

use reqwest::Url;
use serde::Deserialize;

use crate::error::{CliError, Fault, Result};
use crate::home::{self, Home};

/// A server that answers, and how this side proves itself.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: String,
    pub(crate) key: Option<String>,
}

/// The server that works on this store of this home, if one runs.
///
/// The key goes to nobody but the process that holds the lock on `server.json`: a file that a dead
/// server left behind, whose port belongs to somebody else by now, is never believed.
pub(crate) async fn look(
    home: &Home,
    store: &str,
    http: &reqwest::Client,
) -> Result<Option<Endpoint>> {
    let Some(said) = home::running_server(home)? else { return Ok(None) };
    if said.store != store {
        tracing::debug!(theirs = said.store, ours = store, "the server works on another store");
        return Ok(None);
    }
    let endpoint = Endpoint { address: said.address.clone(), key: home.key()? };
    let url =
        Url::parse(&said.address).and_then(|base| base.join("/v1/info")).map_err(|error| {
            CliError::new(Fault::Protocol, format!("server.json names no address: {error}"))
        })?;
    let mut request = http.get(url);
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key);
    }
    let answered = async {
        let response = request.send().await?.error_for_status()?;
        response.text().await
    };
    let text = answered.await.map_err(|error| {
        CliError::away(format!(
            "the server of this home (process {}, {}) does not answer: {error}",
            said.pid, said.address
        ))
    })?;
    #[derive(Deserialize)]
    struct Info {
        node: String,
    }
    match serde_json::from_str::<Info>(&text) {
        Ok(info) if info.node == said.node => Ok(Some(endpoint)),
        Ok(_) => Err(CliError::away("another server answers at the address of this home's")),
        Err(error) => Err(CliError::new(
            Fault::Protocol,
            format!("the server of this home cannot be understood: {error}"),
        )
        .hint("server and command line may be of different versions")),
    }
}
