//! The `OpenAPI` document, its page and the console, which need no key.

use http::Method;

use super::{Run, on_leader_and_follower};

#[tokio::test]
async fn the_document_is_the_one_that_answers_are_validated_against() {
    on_leader_and_follower(async |run: Run| {
        let answer = run.node.bare(Method::GET, "/openapi.json").await.expect(200);
        let limits = concord_model::limits::Limits::default();
        let ours = serde_json::to_value(concord_http::openapi::document(&limits)).expect("plain data");
        assert_eq!(answer.body, ours);
        let head = run.node.bare(Method::HEAD, "/openapi.json").await.expect(200);
        assert_eq!(head.header("content-type"), "application/json");
    })
    .await;
}

#[tokio::test]
async fn the_page_and_its_files_come_from_the_node() {
    on_leader_and_follower(async |run: Run| {
        for (path, base) in [("/docs", "/docs/"), ("/docs/", "/docs/")] {
            let page = run.node.bare(Method::GET, path).await.expect(200);
            assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
            assert!(page.header("content-security-policy").starts_with("default-src 'self'"), "{page:?}");
            assert_eq!(page.text.contains("<base href=\"docs/\">"), path == "/docs", "{page:?}");
            assert!(!page.text.contains("http://") && !page.text.contains("https://"), "{page:?}");
            let named =
                |text: &&str| text.ends_with(".js") || text.ends_with(".css") || text.ends_with(".png");
            let files: Vec<&str> = page.text.split('"').filter(named).collect();
            assert!(files.len() >= 5, "{files:?}");
            for file in files {
                let path = format!("{base}{}", file.trim_start_matches("./"));
                run.node.bare(Method::HEAD, &path).await.expect(200);
                let body = run.node.bare(Method::GET, &path).await.expect(200);
                assert!(!body.text.is_empty(), "{path}");
            }
        }
        run.node.bare(Method::GET, "/docs/absent.js").await.refused(404, "not_found_error");
        run.node.bare(Method::POST, "/docs").await.refused(401, "unauthorized_error");
        run.node.bare(Method::GET, "/openapi.json/").await.refused(401, "unauthorized_error");
    })
    .await;
}

#[tokio::test]
async fn the_console_and_its_files_come_from_the_node() {
    on_leader_and_follower(async |run: Run| {
        let there = run.node.bare(Method::GET, "/ui").await.expect(200);
        assert!(there.text.contains("url=ui/"), "what it names is below /ui/: {there:?}");
        let page = run.node.bare(Method::GET, "/ui/").await.expect(200);
        assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        let files: Vec<&str> =
            page.text.split('"').filter(|text| text.ends_with(".js") || text.ends_with(".css")).collect();
        assert!(files.len() >= 5, "{files:?}");
        for file in files {
            let path = format!("/ui/{file}");
            run.node.bare(Method::HEAD, &path).await.expect(200);
            let body = run.node.bare(Method::GET, &path).await.expect(200);
            assert!(!body.text.is_empty() && body.header("etag").starts_with("W/\""), "{path}");
            assert_eq!(body.header("x-content-type-options"), "nosniff", "{path}");
        }
        for path in ["/ui/absent.js", "/ui/lib/absent.js", "/ui/lib/..%2Fapp.js"] {
            run.node.bare(Method::GET, path).await.refused(404, "not_found_error");
        }
        run.node.bare(Method::POST, "/ui/").await.refused(401, "unauthorized_error");
        run.node.bare(Method::GET, "/uix").await.refused(401, "unauthorized_error");
    })
    .await;
}
