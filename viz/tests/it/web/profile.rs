//! The ServiceProfile that a user begins with.

use super::Web;

#[tokio::test]
async fn service_profile_to_begin_with_is_a_file() {
    let web = Web::start().await;
    let file = web.get("/profiles/new?service=web&namespace=shop").await;
    assert_eq!(file.status, 200);
    assert_eq!(file.headers["content-type"], "text/yaml");
    assert_eq!(
        file.headers["content-disposition"],
        "attachment; filename=\"web-profile.yml\""
    );
    assert_eq!(file.headers["x-content-type-options"], "nosniff");
    assert!(
        file.body.contains("name: web.shop.svc.cluster.local"),
        "{}",
        file.body
    );
    for bad in ["", "?service=web", "?service=a%22b&namespace=shop"] {
        let refused = web.get(&format!("/profiles/new{bad}")).await;
        assert_eq!(refused.status, 400, "{bad}");
        assert!(
            refused.body.contains("expected for example"),
            "{}",
            refused.body
        );
    }
}
