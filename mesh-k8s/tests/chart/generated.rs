//! Generates `values.yaml`, `values.schema.json` and the reference page from the values structs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use mesh_k8s::values::reading::{ChartValues, defaults, schema};
use mesh_k8s::values::{MulticlusterLinkValues, MulticlusterValues, Values, VizValues};
use serde_json::{Map, Value};
use serde_norway::Value as Yaml;

/// The width of lines with comments.
const WIDTH: usize = 120;

/// A chart whose files are generated from its values structs.
trait GeneratedChart: ChartValues {
    /// The file of the structs.
    const SOURCE: &'static str;
    /// The reference page.
    const PAGE: &'static str;
    /// The prefix of the chart's templates.
    const TEMPLATES: &'static str;
    /// The beginning of the reference page.
    const INTRODUCTION: &'static str;
}

impl GeneratedChart for Values {
    const SOURCE: &'static str = "mesh-k8s/src/values.rs";
    const PAGE: &'static str = "docs/reference/values.md";
    const TEMPLATES: &'static str = "mesh";
    const INTRODUCTION: &'static str = "# Values of the control plane's chart\n\n\
        Generated from `mesh-k8s/src/values.rs`. Names and meanings are those of Linkerd's chart; `meshAgent`,\n\
        `identity.publishTrustRoots`, `identity.bundleEndpoint`, `podMonitor.agent`, `heartbeatUrl` and\n\
        `destinationController.linkedClusters` exist only in this mesh. Installation rejects unknown names. `null` is the\n\
        default; for an entry of an open map (`nodeSelector`, `proxy.inbound`) it removes the default entry, as in Helm.\n";
}

impl GeneratedChart for VizValues {
    const SOURCE: &'static str = "mesh-k8s/src/values/viz.rs";
    const PAGE: &'static str = "docs/reference/viz-values.md";
    const TEMPLATES: &'static str = "viz";
    const INTRODUCTION: &'static str = "# Values of the chart of the viz extension\n\n\
        Generated from `mesh-k8s/src/values/viz.rs`. Names and meanings are those of Linkerd's chart. Installation rejects\n\
        unknown names. `null` is the default; for an entry of an open map (`nodeSelector`, `prometheus.args`) it removes the\n\
        default entry, as in Helm.\n";
}

impl GeneratedChart for MulticlusterValues {
    const SOURCE: &'static str = "mesh-k8s/src/values/multicluster.rs";
    const PAGE: &'static str = "docs/reference/multicluster-values.md";
    const TEMPLATES: &'static str = "multicluster";
    const INTRODUCTION: &'static str = "# Values of the chart of the multicluster extension\n\n\
        Generated from `mesh-k8s/src/values/multicluster.rs`. Linkerd's chart has the same names and meanings; `nodeSelector`\n\
        and `tolerations` are not in its values file, but in its templates. Installation rejects unknown names. `null` is the\n\
        default, in an item of `controllers` the value of `controllerDefaults`. `resources` can have the form of Linkerd's\n\
        documentation (`cpu.request`) or of Kubernetes (`requests.cpu`).\n";
}

impl GeneratedChart for MulticlusterLinkValues {
    const SOURCE: &'static str = "mesh-k8s/src/values/multicluster.rs";
    const PAGE: &'static str = "docs/reference/multicluster-link-values.md";
    const TEMPLATES: &'static str = "link";
    const INTRODUCTION: &'static str = "# Values of the chart of the service mirror of one Link\n\n\
        Generated from `mesh-k8s/src/values/multicluster.rs`. Linkerd's chart has the same names and meanings. Installation\n\
        rejects unknown names. `null` is the default. `resources` can have the form of Linkerd's documentation (`cpu.request`)\n\
        or of Kubernetes (`requests.cpu`).\n";
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

#[test]
fn schemas_are_generated() {
    fn check<V: GeneratedChart>() {
        let text = serde_json::to_string_pretty(&schema::<V>()).unwrap();
        let path = format!("helm/{}/values.schema.json", V::CHART);
        compare(&path, &format!("{text}\n"));
    }
    check::<Values>();
    check::<VizValues>();
    check::<MulticlusterValues>();
    check::<MulticlusterLinkValues>();
}

#[test]
fn values_files_are_generated() {
    fn check<V: GeneratedChart>() -> Value {
        let mut text = format!(
            "# Values of the chart, with their defaults. Generated from {}; edit that file.\n",
            V::SOURCE
        );
        let defaults = serde_norway::to_value(V::default()).unwrap();
        write_values(&mut text, &defaults, &schema::<V>(), 0);
        compare(&format!("helm/{}/values.yaml", V::CHART), &text);
        serde_norway::from_str(&text).unwrap()
    }
    assert_eq!(Values::read(check::<Values>()).unwrap(), Values::default());
    let read: VizValues = serde_json::from_value(check::<VizValues>()).unwrap();
    assert_eq!(read, VizValues::default());
    let read: MulticlusterValues = serde_json::from_value(check::<MulticlusterValues>()).unwrap();
    assert_eq!(read, MulticlusterValues::default());
    let read = serde_json::from_value(check::<MulticlusterLinkValues>());
    let read: MulticlusterLinkValues = read.unwrap();
    assert_eq!(read, MulticlusterLinkValues::default());
}

#[test]
fn templates_of_defaults_are_generated() {
    fn check<V: GeneratedChart>() {
        let mut text = format!(
            "{{{{/* Generated from {}; edit that file. Templates need the defaults of values that are `null`. */}}}}\n",
            V::SOURCE
        );
        let ignored = V::IGNORED
            .iter()
            .map(|key| (key.path.to_owned(), key.reason.into()));
        let prefix = V::TEMPLATES;
        define(&mut text, &format!("{prefix}.defaults"), defaults::<V>());
        define(&mut text, &format!("{prefix}.ignoredKeys"), ignored);
        let path = format!("helm/{}/templates/_defaults.tpl", V::CHART);
        compare(&path, &text);
    }
    check::<Values>();
    check::<VizValues>();
    check::<MulticlusterValues>();
    check::<MulticlusterLinkValues>();
}

/// A chart must be complete, so each has a copy.
#[test]
fn shared_templates_are_equal() {
    let read = |chart: &str, template: &str| {
        let path = format!("helm/{chart}/templates/{template}.tpl");
        fs::read_to_string(root().join(path)).unwrap()
    };
    let of_extension = [MulticlusterValues::CHART, MulticlusterLinkValues::CHART];
    for chart in [VizValues::CHART].iter().chain(&of_extension) {
        assert_eq!(read(Values::CHART, "_shared"), read(chart, "_shared"));
    }
    let [one, other] = of_extension.map(|chart| read(chart, "_mirror"));
    assert_eq!(one, other);
}

fn define(out: &mut String, name: &str, entries: impl IntoIterator<Item = (String, Value)>) {
    let lines: Vec<String> = entries
        .into_iter()
        .map(|(path, value)| format!("  \"{path}\": {value}"))
        .collect();
    let _ = writeln!(
        out,
        "\n{{{{- define \"{name}\" -}}}}\n{{\n{}\n}}\n{{{{- end }}}}",
        lines.join(",\n")
    );
}

#[test]
fn reference_pages_are_generated() {
    fn check<V: GeneratedChart>() {
        let mut text = format!(
            "{}\n| value | default | meaning |\n|---|---|---|\n",
            V::INTRODUCTION
        );
        let defaults = serde_norway::to_value(V::default()).unwrap();
        write_rows(&mut text, "", &defaults, &schema::<V>());
        text += "\n## Accepted without effect\n\nKeys of Linkerd's chart that have no effect. The notes of an installation list them.\n\n\
            | value | why |\n|---|---|\n";
        for key in V::IGNORED {
            let _ = writeln!(text, "| `{}` | {} |", key.path, key.reason);
        }
        compare(V::PAGE, &text);
    }
    check::<Values>();
    check::<VizValues>();
    check::<MulticlusterValues>();
    check::<MulticlusterLinkValues>();
}

/// Writes a mapping of values as YAML, each value below its description.
fn write_values(out: &mut String, values: &Yaml, schema: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    for (name, value) in values.as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        let schema = &schema["properties"][name];
        if depth == 0 {
            out.push('\n');
        }
        let mut prefix = "# -- ";
        for line in wrap(
            description(name, schema),
            WIDTH - indent.len() - prefix.len(),
        ) {
            let _ = writeln!(out, "{indent}{prefix}{line}");
            prefix = "# ";
        }
        if value.is_mapping() && schema.get("properties").is_some() {
            let _ = writeln!(out, "{indent}{name}:");
            write_values(out, value, schema, depth + 1);
        } else if value.is_mapping() {
            // An open map has one description, so it is written on one line.
            let _ = writeln!(
                out,
                "{indent}{name}: {}",
                serde_json::to_string(value).unwrap()
            );
        } else if let Some(word) = value.as_str().filter(|word| is_flag(word)) {
            let _ = writeln!(out, "{indent}{name}: '{word}'");
        } else {
            let single = Yaml::Mapping([(name.into(), value.clone())].into_iter().collect());
            for line in serde_norway::to_string(&single).unwrap().lines() {
                let _ = writeln!(out, "{indent}{line}");
            }
        }
    }
}

/// In YAML 1.1, which Helm reads, these words are booleans.
fn is_flag(word: &str) -> bool {
    const FLAGS: [&str; 6] = ["on", "off", "yes", "no", "y", "n"];
    FLAGS.iter().any(|flag| flag.eq_ignore_ascii_case(word))
}

/// Writes every value as a row of a table.
fn write_rows(out: &mut String, path: &str, values: &Yaml, schema: &Value) {
    for (name, value) in values.as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        let schema = &schema["properties"][name];
        let path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        if value.is_mapping() && schema.get("properties").is_some() {
            let _ = writeln!(out, "| **`{path}`** | | {} |", description(name, schema));
            write_rows(out, &path, value, schema);
        } else {
            let default = serde_json::to_string(value).unwrap();
            let meaning = description(name, schema);
            let _ = writeln!(out, "| `{path}` | `{default}` | {meaning} |");
        }
    }
}

fn description<'a>(name: &str, schema: &'a Value) -> &'a str {
    match schema["description"].as_str() {
        Some(description) => description,
        None => panic!("the value {name} has no description: add a doc comment to its field"),
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Checks that a file of the repository is as expected, or writes it with MESH_UPDATE_GOLDEN.
pub(crate) fn compare(path: &str, expected: &str) {
    let file = root().join(path);
    if env::var_os("MESH_UPDATE_GOLDEN").is_some() {
        fs::write(&file, expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is outdated; run MESH_UPDATE_GOLDEN=1 cargo test -p mesh-k8s --test chart"
    );
}

#[test]
fn schema_rejects_unknown_keys_at_every_level() {
    fn visit(path: &str, schema: &Map<String, Value>, seen: &mut usize) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return;
        };
        assert_eq!(
            schema.get("additionalProperties"),
            Some(&Value::Bool(false)),
            "{path}"
        );
        *seen += 1;
        for (name, schema) in properties {
            let schema = schema.as_object().unwrap();
            let items = schema.get("items").and_then(Value::as_object);
            visit(&format!("{path}.{name}"), items.unwrap_or(schema), seen);
        }
    }
    for (schema, levels) in [
        (schema::<Values>(), 30),
        (schema::<VizValues>(), 15),
        (schema::<MulticlusterValues>(), 15),
        (schema::<MulticlusterLinkValues>(), 5),
    ] {
        let mut seen = 0;
        visit("", schema.as_object().unwrap(), &mut seen);
        assert!(seen > levels, "{seen} levels");
    }
}
