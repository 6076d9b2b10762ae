//! HTTP, SSE, access, limits, metrics and the embedded web page.
