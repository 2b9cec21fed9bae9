//! The profiles of documents, as they are printed.

use super::*;

fn yaml(spec: Result<ServiceProfileSpec, Failure>) -> String {
    let object = object("web.shop.svc.cluster.local", "shop", spec.unwrap()).unwrap();
    manifests::render(&[object], ManifestFormat::Yaml).unwrap()
}

const SWAGGER: &str = "\
swagger: '2.0'
info: {title: books, version: '1'}
basePath: /v1/
paths:
  /books/{id}:
    parameters: [{name: id, in: path, required: true, type: string}]
    put:
      x-linkerd-timeout: 300ms
      responses:
        200: {description: ok}
        '500': {description: failed}
        default: {description: other}
    get:
      x-linkerd-retryable: true
      x-linkerd-timeout: 10s
  /authors: {post: {responses: {}}}
";

#[test]
fn swagger_document_becomes_routes() {
    assert_eq!(
        yaml(open_api::spec(SWAGGER, "books.yaml")),
        "\
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: web.shop.svc.cluster.local
  namespace: shop
spec:
  routes:
  - condition:
      method: POST
      pathRegex: /v1/authors
    name: POST /v1/authors
  - condition:
      method: GET
      pathRegex: /v1/books/[^/]*
    isRetryable: true
    name: GET /v1/books/{id}
    timeout: 10s
  - condition:
      method: PUT
      pathRegex: /v1/books/[^/]*
    name: PUT /v1/books/{id}
    responseClasses:
    - condition:
        status:
          max: 200
          min: 200
    - condition:
        status:
          max: 500
          min: 500
      isFailure: true
    timeout: 300ms
"
    );
}

#[test]
fn openapi_3_document_in_json_becomes_routes() {
    let text = r#"{
        "openapi": "3.1.0",
        "info": {"title": "books", "version": "1"},
        "servers": [{"url": "https://{region}.example.com/v2?x=/y"}, {"url": "/v2/"}],
        "paths": {
            "/a.b": {"delete": {"responses": {"4XX": {}, "5xx": {}, "default": {}}}, "trace": {}},
            "x-internal": {}
        }
    }"#;
    assert_eq!(
        yaml(open_api::spec(text, "books.json")),
        r"---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: web.shop.svc.cluster.local
  namespace: shop
spec:
  routes:
  - condition:
      method: DELETE
      pathRegex: /v2/a\.b
    name: DELETE /v2/a.b
    responseClasses:
    - condition:
        status:
          max: 499
          min: 400
    - condition:
        status:
          max: 599
          min: 500
      isFailure: true
  - condition:
      method: TRACE
      pathRegex: /v2/a\.b
    name: TRACE /v2/a.b
"
    );
}

#[test]
fn protobuf_file_becomes_routes() {
    let text = r#"
        syntax = "proto3";
        package shop.v1;
        import "google/protobuf/empty.proto";
        // A service.
        service Web {
            rpc Get (GetRequest) returns (GetReply) { option deprecated = true; }
            rpc Watch (GetRequest) returns (stream GetReply);
        }
        service Admin { rpc Stop (google.protobuf.Empty) returns (google.protobuf.Empty); }
        message GetRequest { string id = 1; }
        message GetReply {}
    "#;
    assert_eq!(
        yaml(proto::spec(text, "web.proto")),
        r"---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  name: web.shop.svc.cluster.local
  namespace: shop
spec:
  routes:
  - condition:
      method: POST
      pathRegex: /shop\.v1\.Web/Get
    name: Get
  - condition:
      method: POST
      pathRegex: /shop\.v1\.Web/Watch
    name: Watch
  - condition:
      method: POST
      pathRegex: /shop\.v1\.Admin/Stop
    name: Stop
"
    );
    let plain = "syntax = \"proto3\"; message M {} service S { rpc Do (M) returns (M); }";
    assert!(yaml(proto::spec(plain, "s.proto")).contains("pathRegex: /S/Do\n"));
}

#[test]
fn invalid_documents_are_refused_with_field_or_line() {
    let open_api = |text: &str| open_api::spec(text, "a.yaml").unwrap_err().to_string();
    for (text, expect) in [
        ("paths: [", "a.yaml: not an OpenAPI document: "),
        ("[]", "a.yaml: not an OpenAPI document: "),
        (
            "{paths: {}}",
            "a.yaml: not an OpenAPI document: it has neither swagger nor openapi",
        ),
        (
            "{swagger: '1.2'}",
            "a.yaml: version \"1.2\" of OpenAPI is not supported",
        ),
        ("{openapi: 4.0.0}", "a.yaml: version \"4.0.0\" of OpenAPI"),
        ("{openapi: 3.0.0}", "a.yaml: paths: has no operations"),
        (
            "{openapi: 3.0.0, paths: {a: {get: {}}}}",
            "a.yaml: paths.a: a path begins with a slash",
        ),
        (
            "{openapi: 3.0.0, paths: {/a: {$ref: b.yaml}}}",
            "a.yaml: paths./a.$ref: \"b.yaml\" is not followed",
        ),
        (
            "{openapi: 3.0.0, paths: {/a: {get: {x-linkerd-retryable: 5}}}}",
            "a.yaml: not an OpenAPI document: paths./a.get.x-linkerd-retryable: invalid type",
        ),
    ] {
        let error = open_api(text);
        assert!(error.starts_with(expect), "{text}: {error}");
    }
    let error = proto::spec("syntax = \"proto3\";\nservice {", "a.proto").unwrap_err();
    let expect = "a.proto line 2 is not a protobuf file: ";
    assert!(error.to_string().starts_with(expect), "{error}");
    let error = proto::spec("syntax = \"proto3\";", "a.proto").unwrap_err();
    assert!(error.to_string().contains("has no service"), "{error}");
}

#[test]
fn profile_that_the_webhook_would_refuse_is_not_printed() {
    let timeout = SWAGGER.replace("300ms", "soon");
    let spec = open_api::spec(&timeout, "a.yaml").unwrap();
    let error = object("web.shop.svc.cluster.local", "shop", spec).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the profile would be invalid: spec.routes[2].timeout: \"soon\" is not a duration; \
         write for example 500ms, 10s or 1m30s"
    );
    let paths: String = (0..1_001)
        .map(|n| format!("  /p{n}: {{get: {{}}}}\n"))
        .collect();
    let spec = open_api::spec(&format!("openapi: 3.0.0\npaths:\n{paths}"), "a.yaml").unwrap();
    let error = object("web.shop.svc.cluster.local", "shop", spec).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("spec.routes: has 1001 items; at most 1000")
    );
}

#[test]
fn larger_documents_than_the_limit_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MAX_FILE).unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(read(path).unwrap().len() as u64, MAX_FILE);
    file.as_file().set_len(MAX_FILE + 1).unwrap();
    let error = read(path).unwrap_err().to_string();
    assert!(
        error.ends_with("larger than 16 MiB, which is the limit"),
        "{error}"
    );
    assert!(read("/nonexistent").is_err());
}
