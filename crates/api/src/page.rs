//! Pages of lists.

use serde::{Deserialize, Serialize};

/// A page of a list that is walked with an opaque cursor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CursorPage<T> {
    /// The rows.
    pub data: Vec<T>,
    /// Give it back to get the next page; `null` at the end.
    pub next_cursor: Option<String>,
}

/// A page of a list that is walked with `before` and `after`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The rows.
    pub data: Vec<T>,
    /// Whether more rows lie in the direction asked for.
    pub has_more: bool,
}
