//! ServerAuthorization.

use super::{Node, identity, networks, selector};

pub(super) fn server_authorization(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe Servers and clients") else {
        return;
    };
    let fix = "name the Server, or select Servers by their labels";
    if let Some(server) = spec.require("server", fix)
        && let Some(found) = selector::exactly_one(&server, ["name", "selector"], fix)
    {
        match server.get("name") {
            Some(name) => {
                if name.text() == Some("") {
                    name.malformed("is empty", fix);
                }
            }
            None => selector::label_selector(&found),
        }
    }
    if let Some(client) = spec.require("client", "describe the authorized clients")
        && client.object().is_some()
    {
        client_rules(&client);
    }
}

fn client_rules(client: &Node<'_>) {
    if let Some(list) = client.get("networks") {
        networks::networks(&list);
    }
    let unauthenticated = client.get("unauthenticated");
    let unauthenticated = unauthenticated.and_then(|it| it.boolean()).unwrap_or(false);
    let Some(tls) = client.get("meshTLS") else {
        if !unauthenticated {
            client.absent(
                "meshTLS",
                "is missing, so that no client is authorized",
                "set it, or unauthenticated: true for clients without identity",
            );
        }
        return;
    };
    if tls.object().is_none() {
        return;
    }
    if unauthenticated {
        client.conflict(
            "has meshTLS together with unauthenticated: true, which authorizes clients without TLS",
            "remove one of them",
        );
    }
    let any_tls = tls.get("unauthenticatedTLS");
    let any_tls = any_tls.and_then(|it| it.boolean()).unwrap_or(false);
    for name in ["identities", "serviceAccounts"] {
        let Some(list) = tls.get(name) else {
            continue;
        };
        if any_tls {
            list.conflict(
                "is set together with unauthenticatedTLS: true, which authorizes clients without identity",
                "remove one of them",
            );
        }
        if name == "identities" {
            identity::identities(&list);
        } else {
            service_accounts(&list);
        }
    }
}

fn service_accounts(list: &Node<'_>) {
    for account in list.items() {
        if account.object().is_none() {
            continue;
        }
        if let Some(name) = account.require("name", "write the name of a ServiceAccount")
            && name.text() == Some("")
        {
            name.malformed("is empty", "write the name of a ServiceAccount");
        }
        let _namespace = account.text_of("namespace");
    }
}
