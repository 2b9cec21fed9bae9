//! Changes of a bundle of trust anchors that keep its other text.

use mesh_cluster::certificate::pem_blocks;

/// Returns the bundle with these anchors, in PEM, after its own. Those that it has are not added
/// again.
pub(crate) fn with(bundle: &str, anchors: &str) -> String {
    let present: Vec<Vec<u8>> = pem_blocks(bundle).into_iter().map(|it| it.der).collect();
    let mut text = bundle.trim_end().to_owned();
    for anchor in pem_blocks(anchors) {
        if !present.contains(&anchor.der) {
            if !text.is_empty() {
                text.push('\n');
            }
            text += anchor.text;
        }
    }
    text.push('\n');
    text
}

/// Returns the bundle, in PEM, without these certificates, in DER.
pub(crate) fn without(bundle: &str, certificates: &[Vec<u8>]) -> String {
    let mut text = bundle.to_owned();
    for block in pem_blocks(bundle) {
        if certificates.contains(&block.der) {
            let with_break = format!("{}\n", block.text);
            text = if text.contains(&with_break) {
                text.replace(&with_break, "")
            } else {
                text.replace(block.text, "")
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mesh_cluster::certificate::authority::Authority;

    use super::*;
    use crate::certificate::read_pem;

    fn anchor() -> String {
        let authority = Authority {
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            anchor_lifetime: Authority::ANCHOR_LIFETIME,
            issuer_lifetime: Authority::ISSUER_LIFETIME,
        };
        authority.anchor(SystemTime::now()).unwrap().certificate
    }

    #[test]
    fn anchors_are_added_once_and_removed_without_changing_the_rest() {
        let (old, new, other) = (anchor(), anchor(), anchor());
        let der = |pem: &str| read_pem(pem.as_bytes(), "it").unwrap().remove(0);
        let bundle = format!("# of another cluster\n{other}# ours\n{old}");
        let both = with(&bundle, &new);
        assert_eq!(both, format!("{bundle}{new}"));
        assert_eq!(with(&both, &new), both);
        let expected = format!("# of another cluster\n{other}# ours\n{new}");
        assert_eq!(without(&both, &[der(&old)]), expected);
        assert_eq!(without(&expected, &[der(&old)]), expected);
        // Without a line break at the end, as other tools write it.
        assert_eq!(with(old.trim_end(), &new), format!("{old}{new}"));
        let last = format!("{new}{}", old.trim_end());
        assert_eq!(without(&last, &[der(&old)]), new);
    }
}
