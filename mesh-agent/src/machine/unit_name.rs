//! Names of systemd units, and where systemd puts their cgroups.

/// Longest name of a unit that can be enrolled; systemd's limit is 255. A record's file has the
/// name and an ending.
const MAX_NAME: usize = 240;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitNameError {
    #[error(
        "{0:?} is not the name of a service or slice, such as nginx.service (letters, digits, ':', '-', '_', '.', '\\' and '@', at most {MAX_NAME} characters)"
    )]
    Invalid(String),
    #[error("{0:?} is a template; name one of its instances, such as {1:?}")]
    Template(String, String),
    #[error("{0:?} contains every service, and enrolling it would redirect the host")]
    Root(String),
}

/// Checks the name of a unit that is to be enrolled, which also prevents path traversal.
pub(super) fn check(name: &str) -> Result<(), UnitNameError> {
    let is_valid = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.' | '\\' | '@'));
    let stem = name
        .strip_suffix(".service")
        .or_else(|| name.strip_suffix(".slice"));
    let stem = stem.filter(|stem| is_valid && !stem.is_empty() && !stem.starts_with('.'));
    let Some(stem) = stem.filter(|_| name.len() <= MAX_NAME) else {
        let quoted = name.chars().take(MAX_NAME).collect();
        return Err(UnitNameError::Invalid(quoted));
    };
    if matches!(
        name,
        "-.slice" | "system.slice" | "user.slice" | "machine.slice"
    ) {
        return Err(UnitNameError::Root(name.to_owned()));
    }
    match stem.strip_suffix('@') {
        Some(prefix) => {
            let example = format!("{prefix}@1.service");
            Err(UnitNameError::Template(name.to_owned(), example))
        }
        None => Ok(()),
    }
}

/// Returns the path of a slice's cgroup: `a-b.slice` is in `a.slice`.
pub(super) fn slice_path(slice: &str) -> Option<String> {
    let stem = slice.strip_suffix(".slice")?;
    if stem == "-" {
        return Some(String::new());
    }
    if stem.is_empty() || stem.split('-').any(str::is_empty) {
        return None;
    }
    let ends = stem.match_indices('-').map(|(index, _)| index);
    let slices = ends.chain([stem.len()]);
    let names: Vec<String> = slices
        .map(|end| format!("{}.slice", &stem[..end]))
        .collect();
    Some(names.join("/"))
}

/// Joins the path of a slice and the name of a unit in it.
pub(super) fn join(slice: &str, unit: &str) -> String {
    if slice.is_empty() {
        unit.to_owned()
    } else {
        format!("{slice}/{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_and_slices_are_valid() {
        for name in [
            "nginx.service",
            "web.slice",
            "postgresql@15-main.service",
            r"dev-disk\x2dby.service",
            "a:b_c.d.service",
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let long = format!("{}.service", "x".repeat(MAX_NAME));
        for name in [
            "",
            "nginx",
            "nginx.socket",
            ".service",
            "..service",
            "../x.service",
            "a/b.service",
            "a b.service",
            "ä.service",
            "a\0.service",
            &long,
        ] {
            assert!(
                matches!(check(name), Err(UnitNameError::Invalid(_))),
                "{name:?}"
            );
        }
        let error = check("getty@.service").unwrap_err().to_string();
        assert!(error.contains("\"getty@1.service\""), "{error}");
        for name in ["-.slice", "system.slice"] {
            assert_eq!(check(name), Err(UnitNameError::Root(name.to_owned())));
        }
    }

    #[test]
    fn slices_are_nested_by_their_names() {
        let path = |slice: &str| slice_path(slice);
        assert_eq!(path("-.slice").as_deref(), Some(""));
        assert_eq!(path("system.slice").as_deref(), Some("system.slice"));
        assert_eq!(
            path("a-b-c.slice").as_deref(),
            Some("a.slice/a-b.slice/a-b-c.slice")
        );
        for invalid in ["a", ".slice", "-a.slice", "a--b.slice", "a-.slice"] {
            assert_eq!(path(invalid), None, "{invalid}");
        }
        assert_eq!(join("", "web.slice"), "web.slice");
        assert_eq!(join("system.slice", "x.service"), "system.slice/x.service");
    }
}
