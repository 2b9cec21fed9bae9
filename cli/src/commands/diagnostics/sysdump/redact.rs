//! Redacts secrets from the values of the mesh.

use serde_norway::Value;

const REDACTED: &str = "(redacted)";

/// Returns whether the value of a key may be secret. Certificates are public and are needed for
/// diagnosis.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["keypem", "password", "token", "secret", "credential"]
        .iter()
        .any(|word| key.ends_with(word))
}

/// Returns the values without secrets. Values that cannot be parsed are redacted completely.
pub(super) fn values(text: &str) -> String {
    let Ok(mut value) = serde_norway::from_str::<Value>(text) else {
        return REDACTED.to_owned();
    };
    redact(&mut value);
    serde_norway::to_string(&value).unwrap_or_else(|_error| REDACTED.to_owned())
}

fn redact(value: &mut Value) {
    match value {
        Value::Mapping(entries) => {
            for (key, value) in entries.iter_mut() {
                let secret = key.as_str().is_some_and(is_secret);
                if secret && value.as_str().is_some_and(|text| !text.is_empty()) {
                    *value = Value::String(REDACTED.to_owned());
                } else {
                    redact(value);
                }
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        let text = "identity:\n  issuer: {tls: {crtPEM: public, keyPEM: private}}\nlist: [{password: p}]\nproxyInit: {keyPEM: ''}\nplain: 1\n";
        let redacted = values(text);
        assert!(redacted.contains("crtPEM: public"), "{redacted}");
        assert!(!redacted.contains("private"), "{redacted}");
        assert!(!redacted.contains("password: p"), "{redacted}");
        assert_eq!(values("{["), REDACTED);
    }
}
