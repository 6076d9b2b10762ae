//! The page and its files, and the pages of the error codes.

use everturn_api::Code;
use everturn_server::Scope;
use reqwest::Method;

use crate::world::World;

#[tokio::test]
async fn the_page_comes_with_a_strict_policy() {
    let world = World::new().await;
    let page = world.get("/").await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.text.starts_with("<!doctype html>"));
    assert_eq!(
        page.header("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    );
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(page.header("referrer-policy"), "no-referrer");
    assert_eq!(page.header("cache-control"), "no-cache");

    // Everything that the page names is there.
    let names = page.text.split("/assets/").skip(1);
    for name in names.map(|rest| rest.split('"').next().unwrap()) {
        let file = world.get(&format!("/assets/{name}")).await;
        assert_eq!(file.status, 200, "{name}");
        let kind = file.header("content-type");
        match name.rsplit_once('.').unwrap().1 {
            "js" => assert_eq!(kind, "text/javascript; charset=utf-8"),
            "css" => assert_eq!(kind, "text/css; charset=utf-8"),
            "svg" => assert_eq!(kind, "image/svg+xml"),
            other => panic!("{other}"),
        }
    }
}

/// A file that the browser has is not sent again.
#[tokio::test]
async fn a_file_that_is_known_is_not_sent_again() {
    let world = World::new().await;
    let first = world.get("/assets/app.js").await;
    let tag = first.header("etag");
    assert!(tag.starts_with('"') && tag.len() > 10, "a strong tag: {tag}");
    for known in [tag.to_owned(), format!("\"x\", {tag}"), format!("W/{tag}"), "*".to_owned()] {
        let request = world.request(Method::GET, "/assets/app.js").header("if-none-match", &known);
        let again = world.send(request).await;
        assert_eq!((again.status, again.text.as_str()), (304, ""), "{known}");
        assert_eq!(again.header("etag"), tag);
    }
    let request = world.request(Method::GET, "/assets/app.js").header("if-none-match", "\"x\"");
    assert_eq!(world.send(request).await.text, first.text);
}

#[tokio::test]
async fn nothing_else_is_served() {
    let world = World::new().await;
    for path in ["/assets/none.js", "/assets/", "/index.html", "/page.rs", "/docs/errors/none"] {
        assert_eq!(world.get(path).await.refusal(), (404, "not_found".to_owned()), "{path}");
    }
    for path in ["/assets/..%2findex.html", "/docs/errors/..%2flimits"] {
        assert_eq!(world.get(path).await.refusal(), (400, "bad_id".to_owned()), "{path}");
    }
}

/// The page of every code is served under the address that its problems name.
#[tokio::test]
async fn every_code_has_its_page() {
    let world = World::new().await;
    world.token("ann", &[Scope::Read]).await;
    for code in Code::ALL {
        let page = world.get(&format!("/docs/errors/{}", code.as_str())).await;
        assert_eq!(page.status, 200, "{}", code.as_str());
        assert_eq!(page.header("content-type"), "text/plain; charset=utf-8");
        assert!(page.text.lines().next().unwrap().contains(code.as_str()), "{}", code.as_str());
        assert!(page.text.contains(&code.status().to_string()), "{}", code.as_str());
    }
}
