//! Layering, lines, and the table against its page.
