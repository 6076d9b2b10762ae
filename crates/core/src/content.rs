//! What an input or a message says: text and images.

/// One part of a content list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text, any UTF-8 including U+0000.
    Text(String),
    /// An image, inline (base64) or by address; exactly one of the two is set.
    Image {
        /// MIME type, for example `image/png`.
        media_type: String,
        /// Base64 of the bytes.
        data: Option<String>,
        /// Address that the provider fetches.
        url: Option<String>,
    },
}

/// An ordered list of parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content(pub Vec<Part>);

impl Content {
    /// Content that is one text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![Part::Text(text.into())])
    }

    /// All text parts, joined by a newline: what a person would read.
    #[must_use]
    pub fn plain(&self) -> String {
        let mut out = String::new();
        for part in &self.0 {
            if let Part::Text(text) = part {
                if !out.is_empty() {
                    out.push('\n');
                }
                out.push_str(text);
            }
        }
        out
    }

    /// Whether the list is nothing but one text.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.0.as_slice(), [Part::Text(_)])
    }

    /// Whether a person would see nothing: no image, and no text but white space.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|part| match part {
            Part::Text(text) => text.trim().is_empty(),
            Part::Image { .. } => false,
        })
    }
}
