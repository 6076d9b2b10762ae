//! Content lists on the wire.

use everturn_core::{Content, Part};
use serde::{Deserialize, Serialize};

/// One part of a content list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ContentPart {
    /// Text.
    Text {
        /// Any UTF-8.
        text: String,
    },
    /// An image: exactly one of `data` and `url`.
    Image {
        /// MIME type.
        media_type: String,
        /// Base64 of the bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<String>,
        /// Address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
}

impl From<&Part> for ContentPart {
    fn from(part: &Part) -> Self {
        match part {
            Part::Text(text) => Self::Text { text: text.clone() },
            Part::Image { media_type, data, url } => {
                Self::Image { media_type: media_type.clone(), data: data.clone(), url: url.clone() }
            }
        }
    }
}

impl From<ContentPart> for Part {
    fn from(part: ContentPart) -> Self {
        match part {
            ContentPart::Text { text } => Self::Text(text),
            ContentPart::Image { media_type, data, url } => Self::Image { media_type, data, url },
        }
    }
}

/// A whole list, from the domain.
#[must_use]
pub fn list(content: &Content) -> Vec<ContentPart> {
    content.0.iter().map(ContentPart::from).collect()
}

/// A whole list, into the domain.
#[must_use]
pub fn domain(parts: Vec<ContentPart>) -> Content {
    Content(parts.into_iter().map(Part::from).collect())
}
