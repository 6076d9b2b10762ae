//! `everturn grant`: what was allowed for ever by answering `always`, and taking it back.

use everturn_core::Principal;
use everturn_store::op::RevokeGrant;
use everturn_store::{Read as _, execute};
use serde_json::json;

use crate::connect::existing_store;
use crate::error::{CliError, Fault, Result};
use crate::exit::Exit;
use crate::home::Home;
use crate::print;
use crate::settings::Settings;

fn named(principal: &str) -> Result<Principal> {
    Principal::new(principal)
        .map_err(|error| CliError::usage(format!("the principal {principal:?}: {error}")))
}

/// `grant list`
pub(crate) async fn list(settings: &Settings, principal: &str, json: bool) -> Result<Exit> {
    let principal = named(principal)?;
    let home = Home::find(settings)?;
    let store = existing_store(settings, &home, "grant").await?;
    let tools = store.grants(&principal).await?;
    if json {
        print::json(&tools.iter().map(|tool| json!({ "tool": tool })).collect::<Vec<_>>())?;
    } else if tools.is_empty() {
        print::text(&format!("{principal} has allowed no tool for ever\n"))?;
    } else {
        print::text(&tools.iter().map(|tool| format!("{tool}\n")).collect::<String>())?;
    }
    Ok(Exit::Completed)
}

/// `grant revoke`
pub(crate) async fn revoke(settings: &Settings, principal: &str, tool: &str) -> Result<Exit> {
    let principal = named(principal)?;
    let home = Home::find(settings)?;
    let store = existing_store(settings, &home, "grant").await?;
    let op = RevokeGrant { principal: principal.clone(), tool: tool.to_owned() };
    if !execute(&*store, op).await? {
        let detail = format!("{principal} has not allowed {tool:?} for ever");
        return Err(CliError::new(Fault::NoGrant, detail)
            .hint("`everturn grant list` shows what was allowed"));
    }
    print::text(&format!("{tool} asks again in all sessions of {principal}\n"))?;
    Ok(Exit::Completed)
}
