//! The ConfigMap of the denied identities: no proxy has connections with them, and they get no
//! certificate (docs/adr/0231).
//!
//! It is in the namespace of the control plane: who may write there may change the anchors of the
//! mesh, too. `meshctl identity deny` writes it, and the identity service follows it.

use k8s_openapi::api::core::v1::ConfigMap;
use mesh_core::deny_list::{
    DenyList, DenyListError, MAX_DENIED, MAX_DENIED_BYTES, check_entry, parse_entry,
};

use crate::invalid::{Invalid, MAX_PROBLEMS, shown};

/// The name of the ConfigMap. No other one denies an identity.
pub const CONFIG_MAP: &str = "linkerd-denied-identities";

/// The key of the entries, one in each line.
const IDENTITIES: &str = "identities";

/// Reads the ConfigMap. `control_namespace` and `trust_domain` are of this mesh, whose control
/// plane cannot be denied.
///
/// # Errors
///
/// All problems of its fields, at most [`MAX_PROBLEMS`]. Unknown keys are among them.
pub fn read(
    object: &ConfigMap,
    control_namespace: &str,
    trust_domain: &str,
) -> Result<DenyList, Vec<Invalid>> {
    let mut problems = Vec::new();
    let mut data = object.data.clone().unwrap_or_default();
    let list = match data.remove(IDENTITIES) {
        Some(text) => {
            let check = |entry: &str| {
                let entry = parse_entry(entry)?;
                check_entry(&entry, control_namespace, trust_domain)
            };
            entries(&text, check, &mut problems)
        }
        // Not the same as an empty list: someone has written something else.
        None => {
            let problem = "is missing: expected an identity in each line";
            fail(&mut problems, IDENTITIES, problem);
            DenyList::default()
        }
    };
    if object.binary_data.as_ref().is_some_and(|it| !it.is_empty()) {
        problems.push(Invalid::new("binaryData", "has no meaning"));
    }
    for key in data.keys() {
        fail(&mut problems, key, "is not known");
    }
    if problems.is_empty() {
        return Ok(list);
    }
    problems.truncate(MAX_PROBLEMS);
    Err(problems)
}

/// Returns the entries of a ConfigMap that are valid by themselves, if [`read`] refuses it.
pub fn valid_entries(object: &ConfigMap, control_namespace: &str, trust_domain: &str) -> DenyList {
    let text = object.data.as_ref().and_then(|data| data.get(IDENTITIES));
    let text = text.map(String::as_str).unwrap_or_default();
    let mut list = DenyList::default();
    if text.len() > MAX_DENIED_BYTES {
        return list;
    }
    for entry in lines(text).filter_map(|line| parse_entry(line).ok()) {
        if list.len() < MAX_DENIED && check_entry(&entry, control_namespace, trust_domain).is_ok() {
            list.insert(entry);
        }
    }
    list
}

/// Returns the ConfigMap, in the namespace of the control plane.
pub fn config_map(list: &DenyList, namespace: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(CONFIG_MAP.to_owned());
    object.metadata.namespace = Some(namespace.to_owned());
    object.data = Some([(IDENTITIES.to_owned(), to_text(list))].into());
    object
}

/// Returns the entries, each in a line.
pub fn to_text(list: &DenyList) -> String {
    list.texts().map(|text| text + "\n").collect()
}

/// Returns the list that [`to_text`] has written.
///
/// # Errors
///
/// A line is not an entry, or the list exceeds a limit.
pub fn from_text(text: &str) -> Result<DenyList, DenyListError> {
    DenyList::parse(lines(text))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn entries(
    text: &str,
    check: impl Fn(&str) -> Result<(), DenyListError>,
    problems: &mut Vec<Invalid>,
) -> DenyList {
    // Before each line is looked at.
    if text.len() > MAX_DENIED_BYTES {
        let problem = format!(
            "has {} bytes, at most {MAX_DENIED_BYTES} are read",
            text.len()
        );
        fail(problems, IDENTITIES, problem);
        return DenyList::default();
    }
    for line in lines(text).take(MAX_DENIED) {
        if let Err(error) = check(line) {
            fail(
                problems,
                IDENTITIES,
                format!("{} is refused: {error}", shown(line)),
            );
        }
    }
    match from_text(text) {
        Ok(list) => list,
        Err(error) => {
            if problems.is_empty() {
                fail(problems, IDENTITIES, error);
            }
            DenyList::default()
        }
    }
}

fn fail(problems: &mut Vec<Invalid>, key: &str, problem: impl std::fmt::Display) {
    problems.push(Invalid::new(format!("data[{key}]"), problem));
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";

    fn read(object: &ConfigMap) -> Result<DenyList, Vec<Invalid>> {
        super::read(object, "linkerd", "cluster.local")
    }

    fn object(text: &str) -> ConfigMap {
        let mut object = config_map(&DenyList::default(), "linkerd");
        object.data = Some([(IDENTITIES.to_owned(), text.to_owned())].into());
        object
    }

    #[test]
    fn list_is_read_as_it_is_written() {
        let list = DenyList::parse([WEB, "spiffe://a/b", "*.bank.test"]).unwrap();
        assert_eq!(read(&config_map(&list, "linkerd")), Ok(list.clone()));
        assert_eq!(from_text(&to_text(&list)), Ok(list));
        let by_hand = format!("\n  {WEB}\r\n{WEB}\n\n");
        assert_eq!(read(&object(&by_hand)).map(|it| it.len()), Ok(1));
        assert_eq!(read(&object("")), Ok(DenyList::default()));
    }

    #[test]
    fn every_invalid_field_is_named() {
        let many: Vec<String> = (0..=MAX_DENIED).map(|at| format!("a{at}.test")).collect();
        let long = "a.test\n".repeat(MAX_DENIED_BYTES / 7 + 1);
        let own = "*.linkerd.serviceaccount.identity.linkerd.cluster.local";
        for (text, problem) in [
            (
                "a b",
                "data[identities]: \"a b\" is refused: invalid DNS name",
            ),
            (
                "a.test\n*",
                "data[identities]: \"*\" is refused: \"*\" denies",
            ),
            (own, "data[identities]: \"*.linkerd.serviceaccount"),
            (
                &many.join("\n"),
                "data[identities]: the list has more than 1000",
            ),
            (&long, "data[identities]: has 65541 bytes"),
        ] {
            let object = object(text);
            let problems = read(&object).unwrap_err();
            assert!(problems[0].to_string().starts_with(problem), "{problems:?}");
        }
        let mut unknown = object(WEB);
        unknown
            .data
            .as_mut()
            .unwrap()
            .insert("identity".to_owned(), String::new());
        let mut binary = object(WEB);
        binary.binary_data = Some([("a".to_owned(), k8s_openapi::ByteString(vec![1]))].into());
        let mut without = object(WEB);
        without.data = None;
        for (object, problem) in [
            (unknown, "data[identity]: is not known"),
            (binary, "binaryData: has no meaning"),
            (
                without,
                "data[identities]: is missing: expected an identity in each line",
            ),
        ] {
            let problems = read(&object).unwrap_err();
            assert_eq!(problems[0].to_string(), problem);
        }
        let wrong = "a b\n".repeat(MAX_PROBLEMS + 1);
        assert_eq!(read(&object(&wrong)).unwrap_err().len(), MAX_PROBLEMS);
    }

    #[test]
    fn valid_entries_of_an_invalid_list_are_known() {
        let own = "*.cluster.local";
        let list = valid_entries(
            &object(&format!("{WEB}\na b\n*\n{own}\n*.bank.test")),
            "linkerd",
            "cluster.local",
        );
        let texts: Vec<String> = list.texts().collect();
        assert_eq!(texts, [WEB, "*.bank.test"]);
        let many = "a.test\n".repeat(MAX_DENIED_BYTES / 7 + 1);
        assert!(valid_entries(&object(&many), "linkerd", "cluster.local").is_empty());
    }
}
