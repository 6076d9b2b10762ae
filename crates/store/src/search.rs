//! Finding text, whatever its case: one rule for all backends.

/// Text that is looked for.
#[derive(Debug, Clone)]
pub struct Needle {
    folded: Vec<char>,
    /// The folded text again where it is plain ASCII, for the quick way.
    ascii: Option<Vec<u8>>,
}

impl Needle {
    /// Folds the text once.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let folded: Vec<char> = fold(text).collect();
        let ascii = text.is_ascii().then(|| text.to_ascii_lowercase().into_bytes());
        Self { folded, ascii }
    }

    /// Whether a text holds it, whatever the case of either. Nothing is in every text.
    #[must_use]
    pub fn is_in(&self, text: &str) -> bool {
        let Some(first) = self.folded.first() else { return true };
        if let Some(needle) = &self.ascii
            && text.is_ascii()
        {
            return text
                .as_bytes()
                .windows(needle.len())
                .any(|window| window.eq_ignore_ascii_case(needle));
        }
        let mut rest = fold(text);
        while let Some(c) = rest.next() {
            if c == *first
                && rest.clone().take(self.folded.len() - 1).eq(self.folded[1..].iter().copied())
            {
                return true;
            }
        }
        false
    }
}

/// Each letter as its lower-case letters; `ß` and `İ` as Unicode's simple tables say.
fn fold(text: &str) -> impl Iterator<Item = char> + Clone + '_ {
    text.chars().flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::Needle;

    #[test]
    fn case_is_ignored_in_every_script_and_nulls_are_letters() {
        for (needle, text, found) in [
            ("", "", true),
            ("a", "", false),
            ("HELLO", "say hello there", true),
            ("grün", "GRÜN IST DAS", true),
            ("ПРИВЕТ", "привет", true),
            ("x\0y", "before X\0Y after", true),
            ("after", "x\0after", true),
            ("aab", "aaab", true),
            ("aab", "AÄAAB", true),
            ("%", "100 percent", false),
            ("_", "a_b", true),
            ("ü", "ascii", false),
        ] {
            assert_eq!(Needle::new(needle).is_in(text), found, "{needle:?} in {text:?}");
        }
    }
}
