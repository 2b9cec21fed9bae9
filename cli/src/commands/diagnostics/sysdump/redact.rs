//! Takes out of the mesh's values what nobody else should see.

use serde_norway::Value;

const HIDDEN: &str = "(taken out)";

/// Keys whose values are keys, or might be. Certificates are public and stay: they are what one
/// looks for.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["keypem", "password", "token", "secret", "credential"]
        .iter()
        .any(|word| key.ends_with(word))
}

/// The values without secrets; nothing at all when they cannot be read, for then nobody knows what
/// is in them.
pub(super) fn values(text: &str) -> String {
    let Ok(mut value) = serde_norway::from_str::<Value>(text) else {
        return HIDDEN.to_owned();
    };
    hide(&mut value);
    serde_norway::to_string(&value).unwrap_or_else(|_error| HIDDEN.to_owned())
}

fn hide(value: &mut Value) {
    match value {
        Value::Mapping(entries) => {
            for (key, value) in entries.iter_mut() {
                let secret = key.as_str().is_some_and(is_secret);
                if secret && value.as_str().is_some_and(|text| !text.is_empty()) {
                    *value = Value::String(HIDDEN.to_owned());
                } else {
                    hide(value);
                }
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(hide),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_leave_the_cluster() {
        let text = "identity:\n  issuer: {tls: {crtPEM: public, keyPEM: private}}\nlist: [{password: p}]\nproxyInit: {keyPEM: ''}\nplain: 1\n";
        let redacted = values(text);
        assert!(redacted.contains("crtPEM: public"), "{redacted}");
        assert!(!redacted.contains("private"), "{redacted}");
        assert!(!redacted.contains("password: p"), "{redacted}");
        assert_eq!(values("{["), HIDDEN);
    }
}
